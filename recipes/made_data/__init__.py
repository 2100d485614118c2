"""Data sets that are generated, not downloaded; each module writes the files of one."""

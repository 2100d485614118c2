"""Data sets by name: sources, checksums, and local folders."""

from ctrlreward.data.catalogue import DATA_SETS, DataFile, DataSet, data_folder, find, local_file

__all__ = ["DATA_SETS", "DataFile", "DataSet", "data_folder", "find", "local_file"]

"""Data sets by name: where they are published, what checks them, and where they are kept."""

from ctrlreward.data.catalogue import DATA_SETS, DataFile, DataSet, data_folder, find, local_file

__all__ = ["DATA_SETS", "DataFile", "DataSet", "data_folder", "find", "local_file"]

"""File formats that the commands read and write."""

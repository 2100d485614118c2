"""Tables: rows of JSONL, CSV and Parquet files, and results of runs."""

"""Files of texts: scored row by row, in shards, on several workers."""

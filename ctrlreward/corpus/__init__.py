"""Files of texts: scored row by row, in parts that a killed run keeps."""

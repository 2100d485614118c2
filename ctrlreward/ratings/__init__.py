"""Agreement of scores with people: ratings, raters and preferences (`ctrlreward meta-eval`)."""

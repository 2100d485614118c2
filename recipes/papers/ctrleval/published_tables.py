"""Correlations with human ratings in Tables 3 to 7 of CTRLEval (Ke et al., ACL 2022)."""

# Head of a table: file, scores, levels, source. Rows: model, then Pearson's r, Spearman's rho and
# Kendall's tau of each score; a dash where there is none. With the baselines and ablations.
TABLES = """
# data_senti.txt | coherence, consistency, attribute_relevance | sample | CTRLEval Tables 3, 4
CTRLEval PEGASUS-568M: 0.4395 0.4208 0.3044 0.3226 0.3096 0.2235 0.2861 0.3008 0.2111
# data_topic.txt | coherence, consistency, attribute_relevance | sample | CTRLEval Tables 3, 4
CTRLEval PEGASUS-568M: 0.2403 0.2245 0.1582 0.2342 0.2281 0.1595 0.5189 0.4006 0.2865
# data_senti.txt | coherence, consistency, attribute_relevance | sample | CTRLEval Tables 6, 7
CTRLEval BART-400M: - - 0.3123 - - 0.165 - - 0.1951
CTRLEval T5-large-770M: - - 0.293 - - 0.235 - - 0.2075
CTRLEval T5-base-220M: - - 0.2847 - - 0.2053 - - 0.1867
CTRLEval T5-small-60M: - - 0.2389 - - 0.1495 - - 0.1765
# data_topic.txt | coherence, consistency, attribute_relevance | sample | CTRLEval Table 5
CTRLEval PEGASUS-568M weights=mean: 0.2295 - - 0.1927 - - 0.5091 - -
CTRLEval PEGASUS-568M weights=max: 0.2323 - - 0.1772 - - 0.517 - -
CTRLEval PEGASUS-568M weights=min: 0.1518 - - 0.1559 - - 0.4153 - -
# data_senti.txt | coherence, consistency, attribute_relevance | sample | \
CTRLEval Tables 3, 4 (baseline)
DisScore: 0.2938 0.2329 0.1664 0.201 0.1662 0.1178 0.2213 0.2914 0.2068
UNION: 0.2317 0.2571 0.1836 0.1925 0.1422 0.1009 -0.0133 -0.0324 -0.0219
BLEURT: 0.2585 0.2606 0.185 0.2382 0.2012 0.1445 0.0801 0.0652 0.0467
PPL-GPT: 0.3376 0.331 0.235 0.1881 0.1672 0.1203 -0.0197 -0.0472 -0.0338
PPL-PEGASUS: 0.3901 0.386 0.2743 0.2728 0.2513 0.1808 0.0356 -0.007 -0.0083
BARTScore: 0.388 0.3848 0.2736 0.2682 0.2533 0.1804 -0.0006 -0.0488 -0.0372
BARTScore-PEGASUS: 0.3853 0.3712 0.2653 0.248 0.2267 0.163 0.0336 -0.0271 -0.0221
"""

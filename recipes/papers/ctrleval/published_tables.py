"""Correlations with human ratings in Tables 3 to 7 of CTRLEval (Ke et al., ACL 2022)."""

# Head of a table: file, score, level, source. Rows: model, then Pearson's r, Spearman's rho and
# Kendall's tau; a dash where the paper reports none. With the baselines and ablations.
TABLES = """
# data_senti.txt | coherence | sample | CTRLEval Tables 3, 4
CTRLEval PEGASUS-568M: 0.4395 0.4208 0.3044
# data_senti.txt | consistency | sample | CTRLEval Tables 3, 4
CTRLEval PEGASUS-568M: 0.3226 0.3096 0.2235
# data_senti.txt | attribute_relevance | sample | CTRLEval Tables 3, 4
CTRLEval PEGASUS-568M: 0.2861 0.3008 0.2111
# data_topic.txt | coherence | sample | CTRLEval Tables 3, 4
CTRLEval PEGASUS-568M: 0.2403 0.2245 0.1582
# data_topic.txt | consistency | sample | CTRLEval Tables 3, 4
CTRLEval PEGASUS-568M: 0.2342 0.2281 0.1595
# data_topic.txt | attribute_relevance | sample | CTRLEval Tables 3, 4
CTRLEval PEGASUS-568M: 0.5189 0.4006 0.2865
# data_senti.txt | coherence | sample | CTRLEval Tables 6, 7
CTRLEval BART-400M: - - 0.3123
CTRLEval T5-large-770M: - - 0.293
CTRLEval T5-base-220M: - - 0.2847
CTRLEval T5-small-60M: - - 0.2389
# data_senti.txt | consistency | sample | CTRLEval Tables 6, 7
CTRLEval BART-400M: - - 0.165
CTRLEval T5-large-770M: - - 0.235
CTRLEval T5-base-220M: - - 0.2053
CTRLEval T5-small-60M: - - 0.1495
# data_senti.txt | attribute_relevance | sample | CTRLEval Tables 6, 7
CTRLEval BART-400M: - - 0.1951
CTRLEval T5-large-770M: - - 0.2075
CTRLEval T5-base-220M: - - 0.1867
CTRLEval T5-small-60M: - - 0.1765
# data_topic.txt | coherence | sample | CTRLEval Table 5
CTRLEval PEGASUS-568M weights=mean: 0.2295 - -
CTRLEval PEGASUS-568M weights=max: 0.2323 - -
CTRLEval PEGASUS-568M weights=min: 0.1518 - -
# data_topic.txt | consistency | sample | CTRLEval Table 5
CTRLEval PEGASUS-568M weights=mean: 0.1927 - -
CTRLEval PEGASUS-568M weights=max: 0.1772 - -
CTRLEval PEGASUS-568M weights=min: 0.1559 - -
# data_topic.txt | attribute_relevance | sample | CTRLEval Table 5
CTRLEval PEGASUS-568M weights=mean: 0.5091 - -
CTRLEval PEGASUS-568M weights=max: 0.517 - -
CTRLEval PEGASUS-568M weights=min: 0.4153 - -
# data_senti.txt | coherence | sample | CTRLEval Tables 3, 4 (baseline)
DisScore: 0.2938 0.2329 0.1664
UNION: 0.2317 0.2571 0.1836
BLEURT: 0.2585 0.2606 0.185
PPL-GPT: 0.3376 0.331 0.235
PPL-PEGASUS: 0.3901 0.386 0.2743
BARTScore: 0.388 0.3848 0.2736
BARTScore-PEGASUS: 0.3853 0.3712 0.2653
# data_senti.txt | consistency | sample | CTRLEval Tables 3, 4 (baseline)
DisScore: 0.201 0.1662 0.1178
UNION: 0.1925 0.1422 0.1009
BLEURT: 0.2382 0.2012 0.1445
PPL-GPT: 0.1881 0.1672 0.1203
PPL-PEGASUS: 0.2728 0.2513 0.1808
BARTScore: 0.2682 0.2533 0.1804
BARTScore-PEGASUS: 0.248 0.2267 0.163
# data_senti.txt | attribute_relevance | sample | CTRLEval Tables 3, 4 (baseline)
DisScore: 0.2213 0.2914 0.2068
UNION: -0.0133 -0.0324 -0.0219
BLEURT: 0.0801 0.0652 0.0467
PPL-GPT: -0.0197 -0.0472 -0.0338
PPL-PEGASUS: 0.0356 -0.007 -0.0083
BARTScore: -0.0006 -0.0488 -0.0372
BARTScore-PEGASUS: 0.0336 -0.0271 -0.0221
"""

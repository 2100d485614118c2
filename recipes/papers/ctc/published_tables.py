"""Correlations with human ratings in Tables 2, 3, D.1 to D.4, E.1 and F.1 to F.6 of CTC.

Deng et al. 2021, https://arxiv.org/abs/2109.06379.
"""

# Head of a table: file, scores (with the rating, if not its own), levels, source. Rows: model,
# then Pearson's r, Spearman's rho and Kendall's tau of each score at each level; a dash where there
# is none. With the ablations. Of Table F.5 we have E's figures, of Table F.6 word length's.
TABLES = """
# summeval | consistency | sample, system | CTC Table D.1
CTC E BERT-base: 0.4359 0.3744 0.2974 0.7886 0.7794 0.5667
CTC E RoBERTa-large: 0.3315 0.3202 0.2518 0.6166 0.7912 0.5833
CTC D RoBERTa-large (CNN/DM): 0.524 0.4293 0.3422 0.9146 0.8324 0.6333
CTC D RoBERTa-large (XSUM): 0.5314 0.4273 0.3414 0.9089 0.6059 0.3833
CTC R BERT (CNN/DM): 0.4626 0.3871 0.3071 0.8401 0.6 0.4167
CTC R BERT (XSUM): 0.4868 0.3896 0.3094 0.8473 0.5265 0.35
# summeval | relevance | sample, system | CTC Table D.3
CTC E BERT-base, 11 references: 0.3906 0.3547 0.2544 0.5032 0.3765 0.3167
CTC E RoBERTa-large, 11 references: 0.5198 0.499 0.3671 0.7539 0.7324 0.6167
CTC D RoBERTa-large (CNN/DM), 11 references: 0.4423 0.3962 0.2862 0.5821 0.4794 0.3833
CTC R BERT (CNN/DM), 11 references: 0.4115 0.3617 0.2644 0.4999 0.3824 0.3333
# summeval | relevance | sample, system | CTC Table D.2
CTC E BERT-base, 1 reference: 0.3635 0.3359 0.2401 0.6052 0.75 0.5833
CTC E RoBERTa-large, 1 reference: 0.4985 0.4882 0.3563 0.8494 0.8412 0.7167
CTC D RoBERTa-large (CNN/DM), 1 reference: 0.3824 0.3499 0.2528 0.6226 0.6 0.4833
CTC R BERT (CNN/DM), 1 reference: 0.3733 0.3439 0.2495 0.5556 0.4735 0.4
# qags_cnndm.json | consistency | sample | CTC Table D.4
CTC E BERT-base: 0.6083 0.518 0.4074
CTC E RoBERTa-large: 0.6091 0.5229 0.4141
CTC D RoBERTa-large (CNN/DM): 0.6188 0.564 0.45
CTC D RoBERTa-large (XSUM): 0.6205 0.5362 0.426
CTC R BERT (CNN/DM): 0.6468 0.5252 0.418
CTC R BERT (XSUM): 0.6612 0.5445 0.4348
# qags_xsum.json | consistency | sample | CTC Table D.4
CTC E BERT-base: 0.1436 0.1437 0.1176
CTC E RoBERTa-large: 0.0548 0.0489 0.04
CTC D RoBERTa-large (CNN/DM): 0.3085 0.2952 0.2416
CTC D RoBERTa-large (XSUM): 0.3222 0.3149 0.2576
CTC R BERT (CNN/DM): 0.2157 0.1949 0.1594
CTC R BERT (XSUM): 0.2718 0.2509 0.2053
# mir2019 yelp | preservation | sample, system | CTC Table E.1
CTC E BERT-base: 0.5147 0.5169 0.374 0.8096 0.7133 0.5152
CTC E RoBERTa-large: 0.5142 0.515 0.3752 0.8618 0.7832 0.5758
CTC E RoBERTa-large-MNLI-9: 0.5216 0.5236 0.3805 0.8081 0.7133 0.5152
CTC D RoBERTa-large: 0.4974 0.4952 0.3579 0.8385 0.7483 0.5152
CTC R BERT: 0.506 0.5059 0.3645 0.8226 0.6993 0.4848
# mir2019 yelp | preservation_output, preservation_source, preservation | sample | CTC Table 2
CTC E: 0.4989 - - 0.5078 - - 0.5216 - -
CTC D: 0.4481 - - 0.4608 - - 0.4974 - -
CTC R: 0.4744 - - 0.4823 - - 0.506 - -
# persona_chat.json | engagingness | sample, system | CTC Table F.1
CTC E BERT-base: 0.5003 0.549 0.4193 0.9061 1 1
CTC E RoBERTa-large: 0.4081 0.4502 0.3375 0.9003 0.9 0.8
CTC D RoBERTa-large (PersonaChat): 0.5265 0.5793 0.4412 0.9425 1 1
CTC D RoBERTa-large (TopicalChat): 0.5317 0.5818 0.4409 0.9447 1 1
CTC R BERT-base (PersonaChat): 0.532 0.5692 0.4346 0.9433 1 1
CTC R BERT-base (TopicalChat): 0.4933 0.5333 0.4043 0.9244 1 1
word length (baseline): 0.391 0.422 0.3267 - - -
# persona_chat.json | groundedness | sample, system | CTC Table F.2
CTC E BERT-base: 0.5761 0.5683 0.4492 0.872 0.9 0.8
CTC E RoBERTa-large: 0.3758 0.3652 0.2862 0.814 0.7 0.6
CTC D RoBERTa-large (PersonaChat): 0.5683 0.5674 0.4505 0.8684 0.9 0.8
CTC D RoBERTa-large (TopicalChat): 0.4056 0.4172 0.327 0.7536 0.5 0.4
CTC R BERT-base (PersonaChat): 0.6597 0.6689 0.5338 0.9151 1 1
CTC R BERT-base (TopicalChat): 0.6819 0.7113 0.5636 0.942 1 1
word length (baseline): 0.3171 0.3051 0.2467 - - -
# topical_chat.json | engagingness | sample, system | CTC Table F.3
CTC E BERT-base: 0.4937 0.5047 0.371 0.9606 0.9429 0.8667
CTC E RoBERTa-large: 0.4471 0.4479 0.3288 0.9617 0.8286 0.7333
CTC D RoBERTa-large (PersonaChat): 0.5124 0.5245 0.3878 0.9572 0.6571 0.6
CTC D RoBERTa-large (TopicalChat): 0.5163 0.5253 0.3873 0.9657 0.8286 0.7333
CTC R BERT-base (PersonaChat): 0.4542 0.4588 0.3357 0.9529 0.8286 0.7333
CTC R BERT-base (TopicalChat): 0.4653 0.4643 0.3395 0.9492 0.8286 0.7333
# topical_chat.json | groundedness | sample, system | CTC Table F.4
CTC E BERT-base: 0.4293 0.3949 0.3075 0.9784 0.9429 0.8667
CTC E RoBERTa-large: 0.3122 0.3141 0.2421 0.9868 0.8286 0.7333
CTC D RoBERTa-large (PersonaChat): 0.3697 0.3691 0.2856 0.9784 0.9429 0.8667
CTC D RoBERTa-large (TopicalChat): 0.3099 0.3159 0.2421 0.9842 0.8286 0.7333
CTC R BERT-base (PersonaChat): 0.4026 0.3788 0.3137 0.9742 0.7143 0.6
CTC R BERT-base (TopicalChat): 0.5235 0.4768 0.3838 0.9674 0.8857 0.7333
# persona_chat.json | engagingness_mean | sample | CTC Table 3
CTC E: 0.1502 - -
CTC D: 0.1821 - -
CTC R: -0.049 - -
# topical_chat.json | engagingness_mean | sample | CTC Table 3
CTC E: 0.3184 - -
CTC D: 0.3223 - -
CTC R: -0.0191 - -
# persona_chat.json | groundedness with engaging, engagingness with uses_knowledge | sample | \
CTC Table F.5
CTC E: 0.5082 - - 0.5323 - -
# persona_chat.json | word_length with understandable, word_length with natural, \
word_length with maintains_context, word_length with overall | sample | CTC Table F.6
word length (baseline): -0.0525 - - -0.0342 - - 0.0901 - - 0.2526 - -
"""

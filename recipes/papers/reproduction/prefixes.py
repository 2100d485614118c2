"""Prefixes of PPLM (Dathathri et al. 2020, appendix): of the topics, and of sentiment."""

TOPIC_PREFIXES = (
    *("In summary", "This essay discusses", "Views on", "The connection"),
    *("Foundational to this is", "To review,", "In brief,", "An illustration of", "Furthermore,"),
    *("The central theme", "To conclude,", "The key aspect", "Prior to this", "Emphasised are"),
    *("To summarise", "The relationship", "More importantly,", "It has been shown"),
    *("The issue focused on", "In this essay"),
)
SENTIMENT_PREFIXES = (
    *("Once upon a time", "The book", "The chicken", "The city", "The country", "The horse"),
    *("The lake", "The last time", "The movie", "The painting", "The pizza", "The potato"),
    *("The president of the country", "The road", "The year is 1910."),
)

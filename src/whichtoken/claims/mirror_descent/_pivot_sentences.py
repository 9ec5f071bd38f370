"""Short reviews in which one word decides: does attention look at it?

The idea is that of Julistiono, Tarzanagh, Azizan, arXiv 2410.14581; the sentences are our own.
"""

from __future__ import annotations

from typing import NamedTuple


class PivotSentence(NamedTuple):
    """A review, the word that decides it, in lower case, and its label, -1 or +1."""

    text: str
    pivot: str
    label: int


def _reviews(label: int, **texts: str) -> tuple[PivotSentence, ...]:
    """One sentence for every pivot word."""
    return tuple(PivotSentence(text, pivot, label) for pivot, text in texts.items())


PIVOT_SENTENCES = (
    *_reviews(
        +1,
        superb="The lighting in the last scene was superb.",
        wonderful="My parents and I had a wonderful time with this film.",
        charming="It is a charming little story about two neighbours.",
        brilliant="Her performance as the judge is brilliant.",
        delightful="What a delightful way to spend a rainy afternoon.",
        excellent="The sound and the costumes are excellent.",
        perfect="This was the perfect film for our long flight.",
        amazing="The camera does amazing things in that tunnel.",
        beautiful="They filmed a beautiful summer by the sea.",
        fantastic="The second part is fantastic, go and see it.",
        touching="I did not expect such a touching farewell at the station.",
        hilarious="The dinner with the uncle is hilarious.",
        masterpiece="People will call this a masterpiece for years.",
        enjoyable="An enjoyable evening for the whole family.",
        loved="I loved how the two sisters talk to each other.",
        favorite="This has become my favorite film of the year.",
        gem="It is a small gem that nobody seems to know.",
        powerful="The speech before the court is powerful.",
        magnificent="The mountains look magnificent on a large screen.",
        recommend="I recommend it to all my friends.",
        refreshing="It is refreshing to see a detective who listens.",
        outstanding="The young actor gives an outstanding portrait of the king.",
        unforgettable="The boat trip at the end is unforgettable.",
        clever="It has a clever script with many turns.",
    ),
    *_reviews(
        -1,
        terrible="The music in the last scene was terrible.",
        boring="My parents and I thought that it was boring.",
        awful="It is an awful little story about two neighbours.",
        worst="This is the worst film that I saw on a plane.",
        dreadful="Her performance as the judge is dreadful.",
        ridiculous="The fight on the roof is ridiculous.",
        tedious="The second part is tedious, stay at home.",
        waste="What a waste of a rainy afternoon.",
        horrible="The sound and the costumes are horrible.",
        disappointing="The end of the journey is disappointing.",
        predictable="Every turn of the script is predictable.",
        stupid="They made a stupid joke out of the farewell.",
        poor="The camera work in that tunnel is poor.",
        dull="They filmed a dull summer by the sea.",
        mess="The story of the three brothers is a mess.",
        annoying="The uncle at the dinner is annoying.",
        lame="It has a lame script from start to end.",
        weak="The speech before the court is weak.",
        painful="It was painful to watch the young actor as the king.",
        avoid="I tell all my friends to avoid it.",
        pointless="The boat trip at the end is pointless.",
        garbage="People will call this garbage for years.",
        unwatchable="The picture shakes so much that it is unwatchable.",
        fails="It fails as a film for the whole family.",
    ),
)

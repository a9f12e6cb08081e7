"""Word problems of one or two steps. The answers restate the numbers, so their form is regular."""

from eagleray.corpus.families.template import Template

NAMES = ("Anna", "Ben", "Grace", "Julia", "Ken", "Leo", "Liam", "Maria", "Omar", "Priya", "Sofia", "Tom")
PAIRS = tuple(zip(NAMES, NAMES[1:] + NAMES[:1], strict=True))
THINGS = (
    "apples", "balloons", "books", "cards", "coins", "cookies",
    "marbles", "pencils", "shells", "stickers", "stamps", "oranges",
)  # fmt: skip
SHARES = tuple((friends * each, friends) for friends in range(2, 10) for each in range(2, 13))

TEMPLATES = (
    Template(
        "{name} earns ${wage} per hour and works {hours} hours. How much money does {name} earn?",
        {"name": NAMES, "wage": range(10, 60), "hours": range(3, 21)},
    ),
    Template(
        "A shop sells {thing} for ${price} each. {name} buys {bought} {thing}. How much does {name} pay?",
        {"thing": THINGS, "price": range(2, 10), "name": NAMES, "bought": range(3, 20)},
    ),
    Template(
        "{pair[0]} has {first} {thing} and buys {more} more. "
        "Then {pair[0]} gives {given} {thing} to {pair[1]}. How many {thing} does {pair[0]} have now?",
        {"pair": PAIRS, "first": range(10, 30), "thing": THINGS, "more": (3, 5, 8, 12), "given": (2, 4, 6)},
    ),
    Template(
        "{pair[0]} has {first} {thing}. {pair[1]} has {more} more {thing} than {pair[0]}. "
        "How many {thing} do they have together?",
        {"pair": PAIRS, "first": range(10, 40), "thing": THINGS, "more": (2, 4, 5, 7, 9)},
    ),
    Template(
        "{name} buys {boxes} boxes of {thing}. Each box holds {held} {thing}. "
        "How many {thing} does {name} have in total?",
        {"name": NAMES, "boxes": range(2, 20), "thing": THINGS, "held": range(3, 16)},
    ),
    Template(
        "There are {share[0]} {thing} shared equally among {share[1]} friends. "
        "How many {thing} does each friend get?",
        {"share": SHARES, "thing": THINGS},
    ),
    Template(
        "A train travels at {speed} kilometers per hour for {hours} hours. How far does the train travel?",
        {"speed": range(40, 160, 2), "hours": range(2, 10)},
    ),
    Template(
        "{name} saves ${saved} every week. How much money does {name} save in {weeks} weeks?",
        {"name": NAMES, "saved": range(5, 40), "weeks": range(3, 15)},
    ),
)

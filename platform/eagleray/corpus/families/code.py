"""Requests for one small Python function or class. The answers repeat the request's own words."""

from itertools import permutations

from eagleray.corpus.families.template import Template

NUMBERS = (
    "even numbers", "odd numbers", "positive numbers", "negative numbers", "prime numbers", "unique numbers",
    "numbers divisible by 3", "numbers divisible by 4", "numbers divisible by 5", "numbers divisible by 7",
    "numbers greater than 10", "numbers greater than 100", "numbers less than 10", "numbers less than 50",
    "square numbers", "integers",
)  # fmt: skip
CHARACTERS = (
    "vowels", "consonants", "digits", "spaces", "uppercase letters", "lowercase letters", "letters",
    "punctuation marks", "words", "commas", "words that start with a vowel", "words that end with a vowel",
    "words longer than 3 letters", "words longer than 5 letters", "words shorter than 4 letters",
)  # fmt: skip
UNITS = (
    ("meters", "feet", "inches", "centimeters", "kilometers", "miles", "yards"),
    ("kilograms", "pounds", "ounces", "grams"),
    ("seconds", "minutes", "hours", "days", "weeks"),
    ("Celsius", "Fahrenheit", "Kelvin"),
    ("liters", "gallons", "milliliters", "cups"),
    ("bytes", "kilobytes", "megabytes", "gigabytes"),
)
CONVERSIONS = tuple(pair for units in UNITS for pair in permutations(units, 2))
CHECKS = (
    "a number is divisible by {}", "a number is greater than {}", "a list contains the number {}",
    "a list has more than {} elements", "a string is longer than {} characters",
    "the sum of a list is greater than {}", "the length of a tuple is {}",
)  # fmt: skip
THINGS = (
    "Book", "Car", "Student", "Employee", "Product", "Movie", "Song", "Player", "City", "Animal", "House",
    "Phone", "Customer", "Order", "Recipe", "Ticket", "Course", "Team",
)  # fmt: skip
ATTRIBUTES = (
    "name", "price", "age", "year", "color", "size", "weight", "rating", "title", "owner", "score", "date",
)  # fmt: skip

TEMPLATES = (
    Template(
        "Write a Python function that {action} the {numbers} {place}.",
        {
            "action": (
                "counts", "prints", "returns a list of", "returns the sum of", "returns the product of",
                "returns the largest of", "returns the smallest of", "returns the average of", "removes",
            ),
            "numbers": NUMBERS,
            "place": ("in a list", "in a tuple", "in a set", "in a dictionary's values", "between 1 and n"),
        },
    ),
    Template(
        "Write a Python function that {action} {characters} {place}.",
        {
            "action": ("counts the", "prints the", "lists the", "removes the", "counts the unique"),
            "characters": CHARACTERS,
            "place": ("in a string", "in a sentence", "in a text file", "in a list of strings"),
        },
    ),
    Template(
        "Write a Python function that converts {amount}{units[0]} to {units[1]}.",
        {"amount": ("", "a list of "), "units": CONVERSIONS},
    ),
    Template(
        "Write a Python function that checks if {check}.",
        {"check": tuple(check.format(number) for check in CHECKS for number in range(2, 52))},
    ),
    Template(
        "Write a Python class called {thing} with the attributes {pair[0]} and {pair[1]}.",
        {"thing": THINGS, "pair": tuple(permutations(ATTRIBUTES, 2))},
    ),
    Template(
        "Write a Python function that {action} a list of {thing} objects by {attribute}.",
        {
            "action": ("sorts", "groups", "filters"),
            "thing": THINGS,
            "attribute": ATTRIBUTES,
        },
    ),
    Template(
        "Write a Python function that returns the {thing} with the {extreme} {attribute} in a list.",
        {
            "thing": THINGS,
            "extreme": ("highest", "lowest"),
            "attribute": ("price", "age", "year", "size", "weight", "rating", "score"),
        },
    ),
)  # fmt: skip

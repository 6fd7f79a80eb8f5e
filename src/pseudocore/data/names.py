"""The words behind the numbers: class names of the well-known sets."""


def class_names(name: str, num_classes: int) -> tuple[str, ...]:
    """Class names of a set known by `name`, or nothing when it is unknown or has another number of
    classes.
    """
    words = _CLASS_NAMES.get(name, ())
    return words if len(words) == num_classes else ()


_NUMERALS = tuple("0123456789")
_CLASS_NAMES = {
    "digits": _NUMERALS,
    "mnist": _NUMERALS,
    "svhn": _NUMERALS,
    "fashion-mnist": (
        "T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
    ),
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
}  # fmt: skip

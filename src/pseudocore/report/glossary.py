"""What the headings of a table mean, shown when one is pointed at and listed at the end."""

MEANINGS = {
    "method": "How the coreset was made: points selected or learned.",
    "per class": "Points per class. With all, no point was left out.",
    "inference": "How a posterior was fitted to the points.",
    "runs": "Coresets behind a row, one for each seed.",
    "n": "Measurements behind each mean: coresets times fitted networks.",
    "accuracy": "Share of test inputs whose likeliest class is the right one.",
    "NLL": "Negative log-probability of the right class, averaged over inputs, in nats.",
    "ECE": "Expected calibration error: how far stated confidence is from being right as often.",
    "Brier": "Squared distance between predicted probabilities and the right class.",
    "RMSE": "Root of the mean squared error of the predicted mean.",
    "KL to full": "How far predictions are from those of inference on all data, in nats.",
    "floor of KL to full": "How far two fits to all data are from each other: nearer is not seen.",
    "TV to full": "Largest difference in probability to full-data inference, averaged over inputs.",
    "agreement with full": "Share of inputs whose likeliest class is that of full-data inference.",
    "NLL gap to full": "What the coreset costs in NLL against full-data inference.",
}


def meaning(title: str) -> str:
    """Of a heading, with or without its arrow; empty for what needs none."""
    return MEANINGS.get(title.rstrip(" ↑↓"), "")

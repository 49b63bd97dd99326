"""Panels of bars, from JSON on standard input to an SVG file: python plot.py FILE."""

import json
import sys

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

OURS, OTHERS, FLOOR = "#b5452c", "#8a94a3", "#d5dae1"
FLOORS = ("raw SQLite", "bare httpx", "openai SDK")
COLUMNS = 2


def main() -> None:
    panels = json.load(sys.stdin)
    rows = max(1, -(-len(panels) // COLUMNS))
    # Fixed, so that the same figures give the same file.
    plt.rcParams.update({"svg.hashsalt": "tenuto", "font.size": 9, "svg.fonttype": "none"})
    figure, axes = plt.subplots(rows, COLUMNS, figsize=(12, 2.6 * rows), squeeze=False)
    for place, axis in enumerate(axes.flat):
        if place >= len(panels):
            axis.axis("off")
            continue
        draw(axis, panels[place])
    figure.tight_layout()
    figure.savefig(sys.argv[1], metadata={"Date": None, "Creator": None})


def draw(axis: plt.Axes, panel: dict) -> None:
    labels = [label for label, _ in panel["bars"]]
    values = [value for _, value in panel["bars"]]
    colours = [
        OURS if label.startswith("Tenuto") else FLOOR if label in FLOORS else OTHERS for label in labels
    ]
    axis.barh(labels, values, color=colours)
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_title(panel["title"], loc="left", fontsize=8)
    axis.set_xlim(min(values) / 2, max(values) * 4)
    axis.spines[["top", "right"]].set_visible(False)
    for place, value in enumerate(values):
        axis.text(value * 1.08, place, f"{value:,.2f}" if value < 10 else f"{value:,.0f}", va="center")


if __name__ == "__main__":
    main()

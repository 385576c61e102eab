"""The histogram of staleness, as SVG that needs no script."""

from __future__ import annotations

from collections.abc import Mapping

SIDES = ("forward", "backward")
WIDTH, HEIGHT, LEFT, TOP, BOTTOM, BAR, GAP = 26, 120, 46, 18, 40, 11, 1
MOST_AGES, MOST_LABELS = 60, 20


def draw(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Ops of each staleness, forward beside backward; empty where nothing is stale.

    ``counts`` : by side, by staleness.
    """
    ages = sorted({int(age) for side in SIDES for age in counts[side]})
    if not ages or ages == [0]:
        return ""
    most = max(count for side in SIDES for count in counts[side].values())
    every = range(ages[0], ages[-1] + 1) if ages[-1] - ages[0] < MOST_AGES else ages
    width, bottom = LEFT + max(WIDTH * len(every), 150) + 8, TOP + HEIGHT
    shapes = [
        f'<text x="{LEFT - 6}" y="{y + 4}" class="right">{count:,}</text>'
        f'<path d="M{LEFT} {y}H{width - 8}" class="grid"/>'
        for count, y in ((most, TOP), (0, bottom))
    ]
    step = -(-len(every) // MOST_LABELS)
    for place, age in enumerate(every):
        x = LEFT + WIDTH * place + 2
        for number, side in enumerate(SIDES):
            count = counts[side].get(str(age), 0)
            high = round(HEIGHT * count / most, 2)
            tip = f"<title>{side}: {count:,} ops of staleness {age}</title>"
            box = f'x="{x + number * (BAR + GAP)}" y="{round(bottom - high, 2)}" width="{BAR}" height="{high}"'
            shapes.append(f'<rect class="{side}" {box}>{tip}</rect>')
        if place % step == 0:
            shapes.append(f'<text x="{x + BAR}" y="{bottom + 15}" class="middle">{age}</text>')
    shapes.append(f'<text x="{LEFT}" y="{bottom + 33}">staleness (updates)</text>')
    shapes.append('<text x="0" y="10">ops</text>')
    size = f'width="{width}" height="{bottom + BOTTOM}" viewBox="0 0 {width} {bottom + BOTTOM}"'
    picture = f'<svg class="histogram" role="img" aria-label="Ops by staleness" {size}>{"".join(shapes)}</svg>'
    return f'{picture}<ul class="legend">{"".join(map(_legend, SIDES))}</ul>\n'


def _legend(side: str) -> str:
    return f'<li><svg width="12" height="12"><rect class="{side}" width="12" height="12"/></svg> {side}</li>'

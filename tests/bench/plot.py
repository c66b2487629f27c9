"""Line plots as SVG, without a library."""
import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 50, 60
COLORS = ("#0b62a4", "#c4511f", "#2d8a4a", "#7b4fa3")


def nice_step(top, steps=6):
    """A round number of which about steps reach top."""
    if top <= 0:
        return 1
    raw = top / steps
    unit = 10 ** math.floor(math.log10(raw))
    return next(unit * m for m in (1, 2, 5, 10) if unit * m >= raw)


def short(number):
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:g}{letter}"
    return f"{number:g}"


def text(x, y, content, anchor="middle", size=12, more=""):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" {more}>'
            f"{escape(str(content))}</text>")


def line(x1, y1, x2, y2, color="#ddd"):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"/>'


def y_axis(values):
    """The marks of the y axis, and a function from value to share of its height. It begins at 0; values
    that are far apart have a logarithmic one."""
    top, bottom = max(values, default=1), min(values, default=1)
    if bottom > 0 and top / bottom > 20:
        low, high = math.floor(math.log10(bottom)), math.ceil(math.log10(top))
        return ([10 ** e for e in range(low, high + 1)],
                lambda value: (math.log10(value) - low) / (high - low))
    step = nice_step(top)
    count = max(1, math.ceil(top / step))
    return [i * step for i in range(count + 1)], lambda value: value / (count * step)


def plot(title, x_label, y_label, labels, series):
    """An SVG text. labels: what stands under the points, which are evenly spaced; series: {name: y
    values, None where there is none}."""
    marks, share = y_axis([y for ys in series.values() for y in ys if y is not None])
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at_x(i):
        return LEFT + inner_width * (i + 0.5) / len(labels)

    def at_y(value):
        return TOP + inner_height * (1 - share(value))

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
             'font-family="sans-serif" fill="#222">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
             text(LEFT, 24, title, "start", 15, 'font-weight="bold"')]
    for mark in marks:
        parts += [line(LEFT, at_y(mark), WIDTH - RIGHT, at_y(mark)),
                  text(LEFT - 8, at_y(mark) + 4, short(mark), "end")]
    parts += [text(at_x(i), HEIGHT - BOTTOM + 20, label) for i, label in enumerate(labels)]
    parts += [line(LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM, "#222"),
              text(LEFT + inner_width / 2, HEIGHT - 16, x_label),
              text(16, TOP + inner_height / 2, y_label,
                   more=f'transform="rotate(-90 16 {TOP + inner_height / 2:.0f})"')]
    for n, (name, ys) in enumerate(series.items()):
        color = COLORS[n % len(COLORS)]
        points = [(at_x(i), at_y(y)) for i, y in enumerate(ys) if y is not None]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"/>' for x, y in points]
        parts += [text(LEFT + 14 + n * 230, 42, name, "start"),
                  line(LEFT + n * 230, 38, LEFT + 10 + n * 230, 38, color)]
    return "\n".join([*parts, "</svg>\n"])

#!/usr/bin/env python3
"""Draws the boards' panels from a Prometheus into one HTML page without scripts, to be looked at where no Grafana is, in tests and on a laptop.

usage: draw.py http://127.0.0.1:9090 OUT.html [SECONDS]     the last SECONDS (900)"""
import html
import json
import pathlib
import re
import sys
import time
import urllib.parse
import urllib.request

BOARDS = pathlib.Path(__file__).resolve().parents[1] / "helm" / "baton" / "files" / "dashboards"
COLORS = ["#5794f2", "#73bf69", "#f2cc0c", "#ff780a", "#e02f44", "#b877d9", "#37872d", "#8ab8ff"]
WIDTH, HEIGHT, LEFT = 420, 150, 76
STYLE = """body{background:#111217;color:#d0d0d8;font:13px sans-serif;margin:16px}h1{font-size:18px}.board{display:flex;flex-wrap:wrap;gap:10px}
.panel{background:#181b1f;border:1px solid #2c3235;padding:8px;width:440px}.panel h2{font-size:13px;margin:0}.panel p{color:#8e8e99;margin:2px 0 4px}
.key{margin-right:10px}.none{color:#e02f44}.big{font-size:40px;margin-right:18px}text{fill:#8e8e99;font-size:10px}"""


UNITS = {"reqps": "req/s", "Bps": "B/s", "bytes": "B", "GBs": "GB/s"}


def number(value, unit):
    """As a person reads it."""
    if unit.startswith("suffix:") or unit in UNITS:
        shown = number(value, "short")
        bytes_of = unit != "reqps" and unit in UNITS and shown[-1].isalpha()  # MB, but k req/s
        return shown + ("" if bytes_of else " ") + UNITS.get(unit, unit.removeprefix("suffix:"))
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if value == 0:
        return "0"
    if unit == "s" and value >= 86400:
        return f"{value / 86400:.3g} days"
    if unit == "s":
        return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"
    for size, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {name}"
    return f"{value:.3g}"


def named(legend, labels):
    return re.sub(r"{{\s*(\w+)\s*}}", lambda found: labels.get(found[1], ""), legend) or "value"


def series_of(panel, ask, seconds):
    """(name, points) of every line; NaN, which is nothing over nothing, is no point."""
    now = time.time()
    for target in panel["targets"]:
        query = re.sub(r"\$(namespace|service|role|worker)", ".*", target["expr"]).replace("$__rate_interval", "30s")
        found = ask("query_range", query=query, start=now - seconds, end=now, step=max(seconds / 120, 0.5))
        for one in found["result"]:
            points = [(float(t), float(v)) for t, v in one["values"] if v not in ("NaN", "+Inf", "-Inf")]
            if points:
                yield named(target.get("legendFormat", ""), one["metric"]), points


def chart(lines, unit):
    low, high = min(0, *(v for _, p in lines for _, v in p)), max(v for _, p in lines for _, v in p)
    high = high if high > low else low + 1
    first, last = min(p[0][0] for _, p in lines), max(p[-1][0] for _, p in lines)
    out = [f'<svg width="{WIDTH}" height="{HEIGHT}">']
    for share in (0, 0.5, 1):
        y = HEIGHT - 8 - share * (HEIGHT - 20)
        out.append(f'<line x1="{LEFT}" y1="{y:.0f}" x2="{WIDTH}" y2="{y:.0f}" stroke="#2c3235"/><text x="0" y="{y + 4:.0f}">'
                   f'{number(low + share * (high - low), unit)}</text>')
    for i, (_, points) in enumerate(lines):
        at = [(LEFT + (t - first) / ((last - first) or 1) * (WIDTH - LEFT - 4), HEIGHT - 8 - (v - low) / (high - low) * (HEIGHT - 20)) for t, v in points]
        color, path = COLORS[i % len(COLORS)], " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        out.append(f'<polyline fill="none" stroke="{color}" stroke-width="1.5" points="{path}"/><circle cx="{at[-1][0]:.1f}" cy="{at[-1][1]:.1f}" r="2" fill="{color}"/>')
    return "".join(out) + "</svg>"


def draw_panel(panel, lines):
    unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit", "short")
    key = "".join(f'<span class="key" style="color:{COLORS[i % len(COLORS)]}">{html.escape(name)}: {number(points[-1][1], unit)}</span>'
                  for i, (name, points) in enumerate(lines[:16]))
    if not lines:
        body = '<p class="none">no data</p>'
    elif panel["type"] == "stat":
        body = "".join(f'<span class="big">{number(points[-1][1], unit)}</span>' for _, points in lines) + "<br>" + key
    else:
        body = chart(lines, unit) + "<br>" + key
    return f'<div class="panel"><h2>{html.escape(panel["title"])}</h2><p>{html.escape(panel.get("description", ""))}</p>{body}</div>'


def page(ask, seconds=900):
    """The page, and the titles of panels that are empty."""
    out, empty = [f'<!doctype html><meta charset="utf-8"><title>Baton</title><style>{STYLE}</style>'], []
    for path in sorted(BOARDS.glob("*.json")):
        board = json.loads(path.read_text())
        out.append(f'<h1>{html.escape(board["title"])}</h1><div class="board">')
        for panel in board["panels"]:
            lines = list(series_of(panel, ask, seconds))
            if not lines:
                empty.append(f'{board["title"]}: {panel["title"]}')
            out.append(draw_panel(panel, lines))
        out.append("</div>")
    return "".join(out) + "\n", empty


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)

    def ask(path, **query):
        with urllib.request.urlopen(f"{sys.argv[1].rstrip('/')}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=30) as answer:
            return json.loads(answer.read())["data"]

    text, empty = page(ask, float(sys.argv[3]) if len(sys.argv) == 4 else 900)
    pathlib.Path(sys.argv[2]).write_text(text)
    print(f"{sys.argv[2]}: {text.count('<h2>')} panels, {len(empty)} without data")


if __name__ == "__main__":
    main()

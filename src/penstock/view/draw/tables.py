"""Facts of datasets and runs as tables, cards and lists."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.view.draw.markup import Child, Markup, tag
from penstock.view.draw.pictures import histogram, meter, shard_bars
from penstock.view.draw.words import count, counted, found, human_bytes, share, short
from penstock.view.facts.comparing import Comparison
from penstock.view.facts.dataset import Overview
from penstock.view.facts.findings import Health
from penstock.view.facts.lengths import Lengths
from penstock.view.facts.run import Node, Plan

MOST_FILES = 100
_QUANTILES = {0.0: "shortest", 0.5: "median", 1.0: "longest"}


def cards(rows: Sequence[tuple[str, str, str]]) -> Markup:
    """Return figures in boxes: number, name, and how it was determined."""
    made = [
        tag("div", tag("b", value), tag("span", name), tag("small", how) if how else None, class_="card")
        for value, name, how in rows
    ]
    return tag("div", made, class_="cards")


def table(
    head: Sequence[str], rows: Sequence[Sequence[Child]], numbers: Sequence[int] = (), *, names: Sequence[int] = ()
) -> Markup:
    """Return a table; the columns `numbers` are right-aligned, `names` don't become narrow."""

    def kind(place: int) -> str | None:
        return "n" if place in numbers else "name" if place in names else None

    top = tag("thead", tag("tr", [tag("th", one, class_=kind(place)) for place, one in enumerate(head)]))
    body = tag("tbody", [tag("tr", [_cell(one, kind(place)) for place, one in enumerate(row)]) for row in rows])
    return tag("div", tag("table", top, body), class_="scroll")


def facts(rows: Sequence[tuple[str, Child]]) -> Markup:
    body = tag("tbody", [tag("tr", tag("td", name, class_="k"), tag("td", value)) for name, value in rows])
    return tag("table", body)


def folded(name: str, content: Child) -> Markup:
    """Return content that opens on a click."""
    return tag("details", tag("summary", name), content)


def overview_cards(one: Overview) -> Markup:
    what = "documents" if one.tokens is not None else "samples"
    rows = [(short(one.samples.value), what, _exact(one.samples.value, found(one.samples)))]
    if one.tokens is not None:
        rows.append((short(one.tokens.count.value), "tokens", _exact(one.tokens.count.value, found(one.tokens.count))))
    if one.disk is not None:
        files = "" if one.disk.of is None else counted(one.disk.of, "file")
        rows.append((human_bytes(one.disk.size_bytes.value), "on disk", files or found(one.disk.size_bytes)))
    if one.lengths is not None:
        median = dict(one.lengths.quantiles).get(0.5)
        unit = one.lengths.unit
        value, name = (human_bytes(median), "") if unit == "bytes" else (short(median), f", {unit}")
        rows.append((value, f"median length{name}", how_lengths(one.lengths)))
    if one.shards is not None:
        rows.append((count(one.shards.count), "shards", f"{count(one.shards.median)} samples in the median shard"))
    return cards(rows)


def overview_facts(one: Overview) -> Markup:
    rows: list[tuple[str, Child]] = [("format", one.format)]
    if one.tokens is not None:
        tokens = one.tokens
        largest = "not recorded" if tokens.max_token_id is None else count(tokens.max_token_id)
        rows += [
            ("bytes per id", counted(tokens.token_bytes, "byte")),
            ("largest id", largest),
            ("EOS", tokens.eos_rule),
        ]
        rows += [("tokenizer", tokens.tokenizer or "not recorded")]
    if one.excluded:
        rows.append(("excluded", f"{count(one.excluded)}, by {one.exclude_list}"))
    rows += [(name.replace("_", " "), _told(name, value)) for name, value in one.details.items() if name != "columns"]
    value = one.fingerprint.value
    rows.append(("fingerprint", tag("code", value) if value else found(one.fingerprint)))
    rows.append(
        (
            "side file",
            one.manifest.tool or "yes" if one.manifest is not None else "none: silent corruption can't be detected",
        )
    )
    return facts(rows)


def lengths(one: Lengths) -> Markup:
    """Return the histogram of lengths with percentiles, and a table of both."""
    names = [_QUANTILES.get(at, f"{at:.0%}") for at, _ in one.quantiles]
    values = [human_bytes(value) if one.unit == "bytes" else count(value) for _, value in one.quantiles]
    quantiles = table([*names, "mean"], [[*values, human_bytes(one.mean) if one.unit == "bytes" else short(one.mean)]],
                      range(len(names) + 1))  # fmt: skip
    most = max(each.count for each in one.bins)
    rows = [
        (f"{count(each.start)} to {count(each.stop)}", count(each.count), meter(each.count, most)) for each in one.bins
    ]
    return tag("div", histogram(one), quantiles,
               folded("as a table", table((one.unit, "samples", ""), rows, (1,))),
               tag("p", how_lengths(one), class_="muted"))  # fmt: skip


def how_lengths(one: Lengths) -> str:
    if one.estimated_from is None:
        return f"of all {count(one.of)}, from the {one.how}" if one.how == "index" else f"of all {count(one.of)}"
    return f"estimated from {count(one.estimated_from)} of {short(one.of)}"


def shards(one: Overview) -> Markup | None:
    if one.shards is None:
        return None
    odd = [f"shard {count(number)} has {counted(samples, 'sample')}" for number, samples in one.shards.odd]
    odd += [f"and {one.shards.num_odd - len(odd):,} more"] if one.shards.num_odd > len(odd) else []
    few, most = one.shards.fewest, one.shards.most
    told = f"{count(few)} to {count(most)} samples per shard, median {count(one.shards.median)}."
    told = f"{count(most)} samples per shard." if few == most else told
    odd_told = tag("p", "Outliers: " + "; ".join(odd) + ".") if odd else None
    return tag("div", shard_bars(one.shards), tag("p", told, class_="muted"), odd_told)


def schema(one: Overview) -> Markup:
    if not one.fields:
        return tag("p", "Fields vary by sample.", class_="muted")
    rows = [
        (
            tag("code", field.name),
            field.kind,
            field.dtype or "–",
            _shape(field.shape),
        )
        for field in one.fields
    ]
    more = tag("p", "Samples may have more fields.", class_="muted") if one.is_open else None
    return tag("div", table(("field", "kind", "dtype", "shape"), rows, names=(0,)), more)


def splits(one: Overview) -> Markup | None:
    if not one.splits:
        return None
    known = [each.samples or 0 for each in one.splits]
    rows = [
        (
            each.name,
            count(each.samples),
            meter(each.samples or 0, sum(known) or 1),
            "shown here" if each.is_open else "",
        )
        for each in one.splits
    ]
    return table(("split", "samples", "share", ""), rows, (1,), names=(0,))


def files(one: Overview) -> Markup | None:
    if one.disk is None or not one.disk.files:
        return None
    most = max(each.size_bytes for each in one.disk.files)
    rows = [
        (tag("code", each.name), human_bytes(each.size_bytes), meter(each.size_bytes, most))
        for each in one.disk.files[:MOST_FILES]
    ]
    left = (one.disk.of or len(one.disk.files)) - len(rows)
    more = (
        tag("p", f"and {count(left)} more" if one.disk.of else "and more", class_="muted")
        if left or not one.disk.of
        else None
    )
    name = f"{counted(one.disk.of, 'file')}" if one.disk.of else f"the first {len(rows)} files"
    return folded(name, [table(("file", "size", ""), rows, (1,), names=(0,)), more])


def health(one: Health) -> Markup:
    if one.is_sound:
        return tag("ul", tag("li", "No findings.", class_="good"), class_="notes")
    rows = []
    for kind in one.kinds:
        where = [
            tag(
                "div", each.path + ("" if each.offset_bytes is None else f", byte {each.offset_bytes:,}"), class_="path"
            )
            for each in kind.places[:5]
        ]
        what = [
            f"found {each.found}" + (f", expected {each.expected}" if each.expected else "")
            for each in kind.places[:1]
            if each.found
        ]
        more = [tag("div", f"and {kind.count - 5:,} more", class_="muted")] if kind.count > 5 else []
        rows.append((tag("span", kind.severity, class_="pill bad" if kind.severity == "error" else "pill warn"),
                     [tag("code", kind.code), tag("div", what)], [where, more], kind.fix or "–"))  # fmt: skip
    return table(("", "what", "where", "what to do"), rows)


def plan_cards(one: Plan) -> Markup:
    rows = [
        (
            short(one.samples),
            "samples",
            "" if one.steps is None else f"{count(one.steps)} steps of {count(one.global_batch)}",
        )
    ]
    if one.tokens is not None:
        rows.append((short(one.tokens), "tokens", "without padding"))
    if one.padding is not None:
        rows.append((share(one.padding), "padding", one.estimated or "of all samples"))
    if one.size_bytes is not None:
        how = f", {one.estimated}" if one.estimated else ""
        rows.append((human_bytes(one.size_bytes), "read", f"{short(one.requests)} requests{how}"))
    rows.append((count(len(one.sources)), "sources", ""))
    return cards(rows)


def plan_table(one: Plan) -> Markup:
    rows = [
        (
            *(each.path, count(each.samples), count(each.reads), f"{each.epochs:,.2f}", count(each.repeats)),
            *(share(each.share), short(each.tokens), share(each.padding), human_bytes(each.size_bytes)),
        )
        for each in one.sources
    ]
    head = ("source", "samples", "reads", "epochs", "repeats", "share", "tokens", "padding", "bytes")
    return table(head, rows, range(1, 9), names=(0,))


def warnings(lines: Sequence[str]) -> Markup | None:
    return tag("ul", [tag("li", one) for one in lines], class_="notes") if lines else None


def tree(node: Node, *, is_root: bool = True, is_only: bool = False) -> Markup:
    """Return the tree of a mix with requested and exact shares; an only child has no name."""
    told: list[Child] = []
    if node.name and not is_only:
        told.append(tag("b", node.name))
    if node.share is not None:
        asked = "" if node.asked is None or abs(node.asked - node.share) < 5e-5 else f", requested {share(node.asked)}"
        told += [" ", tag("span", f"{share(node.share)}{asked}", class_="pill")]
    if node.until is not None:
        told += [" ", tag("span", f"until sample {count(node.until)}", class_="pill")]
    told += [" ", tag("span", node.about, class_="about")]
    below = [tree(child, is_root=False, is_only=node.of == 1) for child in node.children]
    if node.of > len(node.children):
        below.append(tag("li", f"and {count(node.of - len(node.children))} more", class_="muted"))
    made = tag("li", told, tag("ul", below) if below else None)
    return tag("ul", made, class_="tree") if is_root else made


def comparison(one: Comparison) -> Markup:
    if one.equal:
        how = "by the digests in their side files" if one.by == "side files" else "sample by sample"
        return tag(
            "ul", tag("li", f"Both hold the same {counted(one.num_a, 'sample')}, {how}.", class_="good"), class_="notes"
        )
    if one.num_reordered:
        how = f"{count(one.num_reordered)} of {count(one.num_a)} positions differ"
        return tag("ul", tag("li", f"Both hold the same samples in different orders: {how}."), class_="notes")
    rows = [("A", count(one.num_a), count(one.only_in_a)), ("B", count(one.num_b), count(one.only_in_b))]
    return table(("", "samples", "missing from the other dataset"), rows, (1, 2))


def _shape(sizes: Sequence[int | None] | None) -> str:
    if sizes is None:
        return "–"
    return " × ".join("any" if one is None else count(one) for one in sizes) or "one"


def _cell(content: Child, kind: str | None) -> Markup:
    is_picture = isinstance(content, Markup) and content.startswith("<svg")
    return tag("td", content, class_="bars" if is_picture else kind)


def _exact(value: float | None, how: str) -> str:
    return how if value is None or abs(value) < 1e6 else f"{count(value)}, {how}"


def _told(name: str, value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{one} ({text})" for one, text in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, int):
        return human_bytes(value) if name.endswith("_bytes") else count(value)
    return str(value)

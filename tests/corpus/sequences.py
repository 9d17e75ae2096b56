"""Cases of several commands, of empty and damaged inputs, and those of `sequences.txt`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.corpus.inputs import DAMAGES, LAYOUTS

TOKENIZER = "--tokenizer tokenizer/bpe2 --executor inline"
DISTRIBUTED = {
    "filter": "filter pbin/a.pbin -o out/x.pbin --min-tokens 4",
    "filter jsonl": "filter jsonl/a.jsonl -o out/x.jsonl --where 'n > 2'",
    "merge": "merge pbin/a.pbin pbin/b.pbin -o out/x.pbin",
    "merge tars": "merge webdataset/a webdataset/b -o out/x",
    "shuffle": "shuffle pbin/a.pbin -o out/x.pbin --seed 3",
    "split": "split pbin/a.pbin -o out --ratio 3,1",
    "convert": "convert mds/a out/x --to csv --size-limit 260 --group-rows 4 --executor inline",
    "convert pbin": "convert pbin/a.pbin out/x.zarr --executor inline",
    "pack": f"pack jsonl/a.jsonl -o out/x.pbin {TOKENIZER}",
    "pack files": f"pack jsonl/a.jsonl -o out/x/ --file-tokens 200 {TOKENIZER}",
}
PART_SEQUENCES = {
    "one part alone, finish does the rest": "L --part 1/3 ; L --finish",
    "finish without parts": "L --finish",
    "finish without work": "L --part 0/3 ; L --finish --no-work ; L --part 1/3 ; L --part 2/3 ; L --finish --no-work",
    "a part twice": "L --part 0/2 ; L --part 0/2 ; L --part 1/2 ; L --finish",
    "again when complete": "L --part 0/2 ; L --part 1/2 ; L --finish ; L --part 1/2 ; L --finish ; L",
    "other widths": "L --part 0/2 ; L --part 1/3 ; L --part 2/3 ; L --finish",
    "restart": "L --part 0/2 ; L --part 1/2 --restart ; L --part 0/2 ; L --finish",
    "inline in between": "L --part 0/2 ; L",
    "restart inline": "L --restart",
    "over an output": "L ; L --part 0/2 --overwrite ; L --part 1/2 --overwrite ; L --finish --overwrite",
    "over an output, refused": "L ; L --part 0/2",
    "no work without finish": "L --no-work",
    "part and finish": "L --part 0/2 --finish",
    "no such part": "L --part 2/2",
}
OVER = {
    "output exists": "L ; L",
    "overwrite": "L ; L --overwrite",
    "dry run": "L --dry-run",
    "dry run, output exists": "L ; L --dry-run",
    "dry run, overwrite": "L ; L --dry-run --overwrite",
    "dry run of a part": "L --dry-run --part 0/2",
    "dry run with workers": "L --dry-run --workers 2",
}
_SMALL = ("jsonl", "mds", "pbin", "pbin with planes", "flat-tokens", "megatron", "webdataset")


def sequences() -> Iterator[tuple[str, str, str]]:
    """Yield verb, name and commands."""
    verb = ""
    for line in (Path(__file__).parent / "sequences.txt").read_text().splitlines():
        if line.startswith("["):
            verb = line.strip("[]")
        elif line and not line.startswith("#"):
            name, _, lines = line.partition(" = ")
            yield verb, name, lines
    for name, line in DISTRIBUTED.items():
        for kind, sequence in {**PART_SEQUENCES, **OVER}.items():
            yield name.split()[0], f"{name}: {kind}", re.sub(r"\bL\b", lambda _, line=line: line, sequence)
    for format in _SMALL:
        layout = LAYOUTS[format]
        condition = "--indices lists/keep.txt --invert" if layout.kind != "documents" else "--min-tokens 1"
        out = f"-o out/{layout.out}"
        for name in ("none", "one"):
            yield "filter", f"*{format}, {name}", f"filter {layout.source(name)} {out} {condition}"
            yield "shuffle", f"*{format}, {name}", f"shuffle {layout.source(name)} {out} --keep-map"
            yield "split", f"*{format}, {name}", f"split {layout.source(name)} -o out --ratio 1,1"
            yield "merge", f"*{format}, {name}", f"merge {layout.source(name)} {out}"
            yield (
                "merge",
                f"*{format}, {name} among others",
                f"merge {layout.source(name, 'a', name, 'b')} {out} --keep-map",
            )
    for format, layout in LAYOUTS.items():
        for depth in ("quick", "full"):
            yield (
                "verify",
                f"*{format}, {depth}",
                f"verify {layout.source('a').replace(' --split train', '')} --depth {depth}",
            )
        yield (
            "verify",
            f"{format}, written down",
            f"verify {layout.source('b' if 'b' in layout.names else 'a')} --write-manifest",
        )
    for name, dataset, *_ in DAMAGES:
        place = f"broken/{name.replace(' ', '-')}/{dataset.partition('/')[2]}"
        options = next((one.read for one in LAYOUTS.values() if one.path.format("a") == dataset), "")
        for depth in ("quick", "sample", "full"):
            yield "verify", f"damaged {name}, {depth}", f"verify {place} {options} --depth {depth}".replace("  ", " ")
        options = "" if "raw" in name else options
        yield (
            "repair",
            name,
            f"repair {place} {options} ; repair {place} {options} --write ; verify {place} {options} --depth full",
        )

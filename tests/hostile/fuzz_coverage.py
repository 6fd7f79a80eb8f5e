"""The fuzzer of `fuzz.py`, led by what code an input reaches (atheris, the extra `fuzz`).

    python tests/hostile/fuzz_coverage.py -max_total_time=300

An input is a byte for the reader, a byte for its file, and the file's content. Arguments are those of
libFuzzer. What breaks a reader is kept in `tests/hostile/corpus`.
"""

import os
import random
import sys
import tempfile
from pathlib import Path

try:
    import atheris
except ImportError:
    sys.exit('atheris is not installed; pip install "pseudocore[fuzz]"')

with atheris.instrument_imports(include=["pseudocore"]):
    import fuzz


def main() -> None:
    os.environ["PSEUDOCORE_DATA_LIMIT"] = str(fuzz.LIMIT_MIB / 1024)
    os.environ["PSEUDOCORE_NO_LOCK"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PSEUDOCORE_CACHE"] = str(Path(folder) / "cache")
        seeds = fuzz.Seeds(Path(folder))
        files = {
            name: [path.relative_to(seeds.folder / "whole" / name) for path in seeds.files
                   if path.is_relative_to(seeds.folder / "whole" / name)]
            for name in sorted(seeds.readers)
        }  # fmt: skip
        names = list(files)
        known = Path(folder) / "known"
        known.mkdir()
        for place, name in enumerate(names):
            for number, file in enumerate(files[name]):
                content = (seeds.folder / "whole" / name / file).read_bytes()
                (known / f"{name}-{number}").write_bytes(bytes([place, number]) + content)

        def parts(data: bytes) -> tuple[str, Path, bytes]:
            name = names[data[0] % len(names)]
            return name, files[name][data[1] % len(files[name])], data[2:]

        def one(data: bytes) -> None:
            if len(data) < 3:
                return
            kind, why = seeds.outcome(*parts(data))
            if kind == "traceback":
                fuzz.keep_content(*parts(data))
                raise AssertionError(why)

        def change(data: bytes, max_size: int, seed: int) -> bytes:
            if len(data) < 3 or seed % 4 == 0:
                return bytes(atheris.Mutate(data, max_size))
            chance = random.Random(seed)
            other = seeds.files[seed % len(seeds.files)].read_bytes()
            try:
                content = fuzz.mutated(bytes(data[2:]), chance, other)
            except Exception:  # a mutant that is no archive or document any more
                return bytes(atheris.Mutate(data, max_size))
            return (bytes(data[:2]) + content)[:max_size]

        words = [sys.argv[0], f"-timeout={int(fuzz.HANG)}", "-rss_limit_mb=2048", "-max_len=400000"]
        atheris.Setup([*words, *sys.argv[1:], str(known)], one, custom_mutator=change)
        atheris.Fuzz()


if __name__ == "__main__":
    main()

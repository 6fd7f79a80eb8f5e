"""Only `runtime` and `models` name what executes a step."""

import re
from pathlib import Path

import pseudocore

MACHINERY = re.compile(
    r"torch\.(compile|compiler|_dynamo|_inductor|_C)\b"
    r"|cuda\.(graph|CUDAGraph|[Ss]tream|current_stream|is_current_stream_capturing|synchronize)\b"
    r"|\b(forward_ad|triton|functorch)\b"
    r"|\b(is_eager|executing|Execution|kernels_allowed|uses_kernels|without_kernels|has_kernels)\b"
    r"|\b(compiling|graph)\.(region|step|capture|branches)\b"
)


def test_other_rooms_name_no_machinery() -> None:
    root = Path(pseudocore.__file__).parent
    named = [
        f"{path.relative_to(root)}:{number}: {line.strip()}"
        for path in sorted(root.rglob("*.py"))
        if path.relative_to(root).parts[0] not in ("runtime", "models")
        if path.relative_to(root) != Path("core/protocols.py")  # which declares what a model has
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if MACHINERY.search(line)
    ]
    assert named == []

"""Write the King James text of Debian's package bible-kjv-text, which packs it in windows.

Each window is in the code of Unix `compress`, which gzip reads.

    king_james.py [OUT]     default: out/data/king_james.txt
"""

import subprocess
import sys
from pathlib import Path

PACKED = Path("/usr/lib/bible.data")


def unpacked(data: bytes) -> bytes:
    def number(at: int) -> int:
        return int.from_bytes(data[at : at + 4], "big")

    starts = [number(92 + 4 * i) for i in range(number(88) + 1)]
    header = b"\x1f\x9d\x90"  # of `compress`, which the package has once for all windows
    return b"".join(
        subprocess.run(
            ["gzip", "-dc"], input=header + data[a:b], capture_output=True, check=True
        ).stdout
        for a, b in zip(starts, starts[1:], strict=False)
    )


if __name__ == "__main__":
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "out/data/king_james.txt")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(unpacked(PACKED.read_bytes()))

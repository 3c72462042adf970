"""Writes docs/explanation/figures/audit.html: the audit of a small transformer, as a picture.

python scripts/audit_picture.py
"""

import sys
from pathlib import Path

import ddc
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples" / "python"))
import quickstart  # noqa: E402

torch.manual_seed(0)
model = quickstart.Block(width=8, heads=2).double()
audit = ddc.audit(model, quickstart.loss, steps=5)
audit.show(ROOT / "docs" / "explanation" / "figures" / "audit.html")
print(audit)

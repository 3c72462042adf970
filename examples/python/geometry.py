"""The spectrum of the Fisher matrix of an unmodified Hugging Face model, with its zeros named.

Run: python examples/python/geometry.py [picture.html or picture.png]   (some minutes on one core)
"""

import sys

import ddc
import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
sizes = dict(hidden_size=12, intermediate_size=12, num_hidden_layers=1, vocab_size=13)
heads = dict(num_attention_heads=2, num_key_value_heads=1)
model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, initializer_range=0.3)).double().eval()
batches = [{"input_ids": tokens, "labels": tokens} for tokens in torch.randint(13, (2, 32, 9))]

group = ddc.discover(model, batches=batches)
fisher = ddc.geometry.GaussNewton(
    model, batches=batches
)  # of cross-entropy: the exact Fisher matrix
quotient = ddc.geometry.quotient(fisher, group)
spectrum = ddc.geometry.spectrum(quotient)
print(spectrum)


def draw(path: str) -> None:
    """Eigenvalues in their order, and a bar per gauge over the zeros that it makes."""
    from plotly import graph_objects

    figure = graph_objects.Figure()
    zeros = (fisher @ quotient.basis).norm(dim=0).clamp_min(1e-20).tolist()  # rounding
    start = 0
    for name, count in quotient.removed_by:
        if count == 0:
            continue
        places = list(range(start, start + count))
        values = zeros[start : start + count]
        figure.add_scatter(x=places, y=values, mode="markers", name=f"{name}: {count}")
        start += count
    start += spectrum.dead + (spectrum.zeros or 0)
    places = [start + k for k in range(len(spectrum.eigenvalues))]
    figure.add_scatter(
        x=places, y=spectrum.eigenvalues, mode="lines", name="modulo symmetry", line_color="black"
    )
    figure.update_layout(
        title=f"Fisher matrix of a Llama of {spectrum.parameters} parameters",
        xaxis_title=f"eigenvalue number ({spectrum.removed} zeros are directions along orbits)",
        yaxis=dict(
            type="log",
            title="eigenvalue, or |F t| of a direction t along an orbit",
            exponentformat="power",
        ),
        template="plotly_white",
        width=1000,
        height=560,
    )
    if path.endswith(".html"):
        figure.write_html(path, include_plotlyjs="cdn")
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1000, "height": 560})
        page.set_content(figure.to_html(include_plotlyjs=True, config={"displayModeBar": False}))
        page.wait_for_selector(".main-svg")
        page.screenshot(path=path)
        browser.close()


if len(sys.argv) > 1:
    draw(sys.argv[1])

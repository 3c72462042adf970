"""DDCAdam in Lightning, as examples/python/lightning_example.py uses it."""

import sys
from pathlib import Path

import ddc
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "python"))
from lightning_example import Classifier, trainer


def network(plain: bool = False) -> Classifier:
    torch.manual_seed(0)
    return Classifier(width=8, plain=plain)


@pytest.fixture(scope="module")
def group():
    return network().symmetries()


def test_both_hidden_layers_and_the_outputs_have_their_gauges(group):
    assert sorted(gauge.dimension for gauge in group.gauges) == [1, 8, 8, 8]


@pytest.mark.parametrize("plain", [False, True])
def test_copies_fit_alike_under_ddc_adam_only(group, plain):
    copies = [network(plain), group.random_element(seed=1).apply_(network(plain))]
    for copy in copies:
        trainer(epochs=2).fit(copy)
    first, second = (torch.tensor(copy.losses) for copy in copies)
    apart = ((first - second) / first).abs().max()
    if plain:
        assert apart > 1e-3
    else:
        assert isinstance(copies[0].optimizers().optimizer, ddc.DDCAdam)
        assert apart < 1e-9


def test_a_fit_goes_on_from_its_checkpoint(tmp_path):
    whole = network()
    trainer(epochs=2).fit(whole)
    begun = trainer(epochs=1)
    begun.fit(network())
    begun.save_checkpoint(tmp_path / "one.ckpt")
    resumed = network()
    trainer(epochs=2).fit(resumed, ckpt_path=tmp_path / "one.ckpt")
    assert len(resumed.losses) == 16
    assert resumed.losses == whole.losses[16:]


def test_a_callback_logs_the_metrics_of_the_optimizer(group):
    fit = trainer(epochs=1)
    fit.callbacks.append(ddc.lightning.metrics_callback(every=1))
    fit.fit(network())
    assert fit.logged_metrics["ddc/gauges"] == len(group)
    assert fit.logged_metrics["ddc/imbalance"] > 0


def test_a_callback_measures_at_the_steps_and_logs_it(group):
    module = network()
    callback = ddc.lightning.meters_callback(
        log_every=1, arc=ddc.geometry.ArcMeter(module, group, every=2)
    )
    fit = trainer(epochs=1)
    fit.callbacks.append(callback)
    fit.fit(module)
    records = callback.meters.records
    assert [record["step"] for record in records] == list(range(2, len(module.losses) + 1, 2))
    lengths = [record["arc.length"] for record in records]
    assert lengths == sorted(lengths) and lengths[0] > 0
    assert fit.logged_metrics["arc.length"].item() == pytest.approx(lengths[-1])

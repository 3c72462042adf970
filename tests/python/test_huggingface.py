"""Losses of `transformers` models, and DDCAdam in a real Trainer."""

import subprocess
import sys
import warnings
from copy import deepcopy

import ddc
import pytest
import torch
import transformers

LABELS = 3


def tiny() -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=13,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=10,
        max_position_embeddings=6,
        num_labels=LABELS,
        initializer_range=0.3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertForSequenceClassification(config).double()


def examples(count: int) -> list[dict[str, torch.Tensor]]:
    """Whose label is a function of the first token."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, 13, (count, 6), generator=generator)
    types = torch.randint(2, (count, 6), generator=generator)
    return [
        {"input_ids": row, "token_type_ids": kinds, "labels": row[0] % LABELS}
        for row, kinds in zip(tokens, types, strict=True)
    ]


def batch_of(some: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([example[name] for example in some]) for name in some[0]}


BATCHES = [batch_of(examples(64)[start : start + 8]) for start in range(0, 64, 8)]


@pytest.fixture(scope="module")
def group():
    return ddc.discover(tiny(), ddc.huggingface.loss_fn(BATCHES))


def arguments(path, **changes):
    defaults = dict(
        output_dir=str(path),
        per_device_train_batch_size=4,
        max_steps=10,
        learning_rate=1e-2,
        weight_decay=0.1,
        max_grad_norm=0.0,
        save_steps=5,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        data_seed=3,  # the same order, whatever was drawn before
    )
    return transformers.TrainingArguments(**{**defaults, **changes})


def trainer(model, path, group, **changes):
    args = arguments(path, **changes)
    optimizer = ddc.huggingface.optimizer(model, args, group)
    return transformers.Trainer(
        model=model, args=args, train_dataset=examples(32), optimizers=(optimizer, None)
    )


def losses(run) -> list[float]:
    return [entry["loss"] for entry in run.state.log_history if "loss" in entry]


def distance(first: torch.nn.Module, second: torch.nn.Module) -> float:
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


def test_importing_ddc_does_not_import_transformers():
    code = "import sys, ddc; ddc.huggingface.loss_fn; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_loss_is_the_models_own():
    model = tiny()
    assert torch.equal(ddc.huggingface.loss_fn(BATCHES[0])(model), model(**BATCHES[0]).loss)


def test_batches_are_drawn_by_torchs_generator():
    model = tiny()
    loss = ddc.huggingface.loss_fn(BATCHES)
    own = {model(**batch).loss.item() for batch in BATCHES}

    def drawn(seed):
        torch.manual_seed(seed)
        return [loss(model).item() for _ in range(100)]

    assert drawn(0) == drawn(0) != drawn(1)
    assert set(drawn(0)) == own


def test_batches_that_will_not_do_are_refused():
    with pytest.raises(ValueError, match="empty list"):
        ddc.huggingface.loss_fn([])
    with pytest.raises(TypeError, match="dict of tensors.*Tensor"):
        ddc.huggingface.loss_fn(torch.zeros(2, 3))
    unlabelled = {"input_ids": BATCHES[0]["input_ids"]}
    with pytest.raises(ValueError, match="needs labels"):
        ddc.huggingface.loss_fn(unlabelled)(tiny())


def test_settings_are_the_trainers(tmp_path, group):
    args = arguments(tmp_path, adam_beta2=0.99, adam_epsilon=1e-7)
    model = tiny()
    model.bert.embeddings.requires_grad_(False)
    ours = ddc.huggingface.optimizer(model, args, None)
    theirs = transformers.Trainer(model=model, args=args).create_optimizer()
    for own, other in zip(ours.param_groups, theirs.param_groups, strict=True):
        assert all(a is b for a, b in zip(own["params"], other["params"], strict=True))
        for option in ("lr", "betas", "eps", "weight_decay"):
            assert own[option] == other[option]
    assert [g["weight_decay"] for g in ours.param_groups] == [0.1, 0.0]


def test_options_take_the_place_of_the_trainers(tmp_path, group):
    optimizer = ddc.huggingface.optimizer(
        tiny(), arguments(tmp_path), group, lr=0.5, weight_decay=0.3
    )
    assert [g["lr"] for g in optimizer.param_groups] == [0.5, 0.5]
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.3, 0.0]


def test_no_param_group_is_made_for_nothing(tmp_path):
    model = tiny()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("dense.weight"))
    optimizer = ddc.huggingface.optimizer(model, arguments(tmp_path), None)
    assert len(optimizer.param_groups) == 1


def test_clipping_is_warned_of_where_it_is_not_invariant(tmp_path, group):
    clipped, in_place = arguments(tmp_path, max_grad_norm=1.0), {"placement": "in_place"}
    with pytest.warns(UserWarning, match="max_grad_norm=0"):
        ddc.huggingface.optimizer(tiny(), clipped, group, **in_place)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ddc.huggingface.optimizer(tiny(), arguments(tmp_path), group, **in_place)
        ddc.huggingface.optimizer(tiny(), clipped, group)


def test_copies_stay_one_function_in_the_trainer(tmp_path, group):
    """Also though the legs of some gauges are in param groups with different weight decay."""
    model = tiny()
    moved = group.random_element(seed=5).apply_(deepcopy(model))
    assert distance(model, moved) > 0.1
    runs = [trainer(copy, tmp_path / name, group) for name, copy in (("a", model), ("b", moved))]
    decayed = set(runs[0].get_decay_parameter_names(model))
    assert any(
        len({tensor in decayed for tensor, _, _ in gauge.legs}) == 2 for gauge in group.gauges
    )
    for run in runs:
        run.train()
    assert losses(runs[0]) == pytest.approx(losses(runs[1]), rel=1e-9)
    after = [copy(**BATCHES[0]).loss.item() for copy in (model, moved)]
    assert after[0] == pytest.approx(after[1], rel=1e-9)
    assert distance(model, tiny()) > 0.01


def test_the_trainers_own_adamw_takes_them_apart(tmp_path, group):
    loss = []
    for name in ("a", "b"):
        model = tiny()
        if name == "b":
            group.random_element(seed=5).apply_(model)
        transformers.Trainer(
            model=model, args=arguments(tmp_path / name), train_dataset=examples(32)
        ).train()
        loss.append(model(**BATCHES[0]).loss.item())
    assert loss[0] != pytest.approx(loss[1], rel=1e-3)


def test_resuming_goes_on_as_if_nothing_had_happened(tmp_path, group):
    whole = tiny()
    trainer(whole, tmp_path, group).train()
    resumed = tiny()
    again = trainer(resumed, tmp_path, group)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    assert again.state.global_step == 10
    assert distance(whole, resumed) == 0


def test_a_checkpoint_of_other_symmetries_is_refused(tmp_path, group):
    trainer(tiny(), tmp_path, group, max_steps=5).train()
    fewer = trainer(tiny(), tmp_path, group.without("QK linear"))
    with pytest.raises(ValueError, match="was trained with the symmetries"):
        fewer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))


def test_the_trainer_may_make_model_and_optimizer_itself(tmp_path, group):
    args = arguments(tmp_path)
    run = transformers.Trainer(
        model_init=tiny,
        args=args,
        train_dataset=examples(32),
        optimizer_cls_and_kwargs=ddc.huggingface.optimizer_cls_and_kwargs(args, group, eps=1e-6),
    )
    run.train()
    assert isinstance(run.optimizer.optimizer, ddc.DDCAdam)
    assert run.optimizer.optimizer.symmetries == group
    assert {g["eps"] for g in run.optimizer.param_groups} == {1e-6}
    expected = tiny()
    other = trainer(expected, tmp_path / "other", group)
    for param_group in other.optimizer.param_groups:
        param_group["eps"] = 1e-6
    other.train()
    assert distance(run.model, expected) == 0


def test_a_trainer_logs_the_metrics_of_its_optimizer(tmp_path, group):
    run = trainer(tiny(), tmp_path, group, max_steps=3)
    seen = []

    class Reporter(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            seen.append(dict(logs))

    run.add_callback(Reporter())
    ddc.huggingface.log_metrics(run)
    run.train()
    logged = [entry for entry in run.state.log_history if "loss" in entry]
    assert len(logged) == 3
    for entry in logged + seen[:3]:
        assert entry["ddc/gauges"] == len(group)
        assert entry["ddc/imbalance"] > 0


def test_a_trainer_measures_at_its_steps_and_logs_it(tmp_path, group):
    model = tiny()
    run = trainer(model, tmp_path, group, max_steps=3)
    trajectory = ddc.geometry.Trajectory(model, group)
    arc = ddc.geometry.ArcMeter(model, group)
    seen = []

    class Reporter(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            seen.append(dict(logs))

    run.add_callback(Reporter())
    callback = ddc.huggingface.log_meters(
        run, every=2, arc=arc, twice=lambda: {"steps": float(run.state.global_step)}
    )
    run.train()
    records = callback.meters.records
    assert [record["step"] for record in records] == [1, 2, 3]
    lengths = [record["arc.length"] for record in records]
    assert 0 < lengths[0] < lengths[1] < lengths[2]
    assert trajectory.update() <= lengths[2] * (1 + 1e-9)  # the straight way is the shortest
    assert ["twice.steps" in record for record in records] == [False, True, False]
    logged = [entry for entry in run.state.log_history if "loss" in entry]
    assert [entry["arc.length"] for entry in logged] == lengths
    assert [entry["arc.length"] for entry in seen[:3]] == lengths
    assert set(callback.meters.cost) == {"arc", "twice"}
    with pytest.raises(TypeError, match=r"transformers\.Trainer"):
        ddc.huggingface.log_meters(model, arc=arc)


def held_trainer(model, path, group, **changes):
    """The Trainer with torch's own AdamW, which it clips, and knows nothing of symmetries."""
    optimizer = torch.optim.AdamW(model.named_parameters(), lr=1e-2, fused=True)
    ddc.hold(optimizer, group)
    return transformers.Trainer(
        model=model,
        args=arguments(path, max_grad_norm=0.5, **changes),
        train_dataset=examples(32),
        optimizers=(optimizer, None),
    )


def test_a_held_optimizer_in_the_trainer_clips_and_is_blind_to_symmetries(tmp_path, group):
    model = tiny()
    moved = group.random_element(seed=5).apply_(deepcopy(model))
    runs = [
        held_trainer(copy, tmp_path / name, group) for name, copy in (("a", model), ("b", moved))
    ]
    for run in runs:
        run.train()
    assert losses(runs[0]) == pytest.approx(losses(runs[1]), rel=1e-11)
    norms = [e["grad_norm"] for e in runs[0].state.log_history if "grad_norm" in e]
    assert max(norms) > 0.5
    assert distance(model, moved) < 1e-10


def test_a_held_optimizer_resumes_in_the_trainer(tmp_path, group):
    whole = tiny()
    held_trainer(whole, tmp_path, group).train()
    resumed = tiny()
    again = held_trainer(resumed, tmp_path, group)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    assert again.state.global_step == 10
    assert distance(whole, resumed) == 0

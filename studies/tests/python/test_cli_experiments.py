"""ddc list, run, experiment, compare and report. Needs the C++ build."""

import contextlib
import json
import os
import random
import shlex
import shutil
import signal
import subprocess

import pytest
from cli_support import FAILURE, INTERRUPTED, USAGE, ddc, default_signals, tool
from terminal import run_in_terminal

RELU = "relu_teacher_student"
TINY = ["--set", "d_hidden=8", "samples=32", "--every", 10]
WITHOUT_END = 10**9


def succeed(*arguments, **options):
    result = ddc(*arguments, **options)
    assert result.returncode == 0, result.stderr
    return result


def printed_json(*arguments, **options):
    return json.loads(succeed(*arguments, "--json", **options).stdout)


def train(folder, *arguments, steps=200):
    """The run's metrics.jsonl."""
    succeed("run", RELU, *TINY, "--steps", steps, "--out", folder, "--quiet", *arguments)
    return (folder / "metrics.jsonl").read_bytes()


def start(*arguments, **options):
    """In a process group of its own, as a shell would."""
    return subprocess.Popen(
        [tool(), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=default_signals,
        **options,
    )


def lines_of(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_until(process, is_so):
    """Returns whether it came to be so before the process ended."""
    while not is_so():
        try:
            process.wait(timeout=0.01)
            return False
        except subprocess.TimeoutExpired:
            pass
    return process.poll() is None


def interrupt(process, folder, lines, number=signal.SIGINT):
    """Once its metrics.jsonl has so many lines. Returns what it says on standard error."""
    assert wait_until(process, lambda: lines_of(folder / "metrics.jsonl") >= lines)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED, said
    return said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["list", "testbed"], "unknown kind 'testbed'; did you mean 'testbeds'?"),
        (
            ["list", "testbeds", "relu_teacher_studnt"],
            "unknown testbed 'relu_teacher_studnt'; did you mean 'relu_teacher_student'?"
            " (ddc list testbeds)",
        ),
        (["run"], "TESTBED (see ddc list testbeds) or --resume is required"),
        (["run", "sparse_party"], "unknown testbed 'sparse_party'; did you mean 'sparse_parity'?"),
        (["run", RELU, "--optimizer", "adam"], "did you mean 'adamw'? (ddc list optimizers)"),
        (
            ["run", RELU, "--set", "d_hiden=3"],
            "--set: unknown setting 'd_hiden'; did you mean 'd_hidden'?"
            f" (ddc list testbeds {RELU}, ddc list optimizers adamw)",
        ),
        (["run", RELU, "--set", "beta3=3"], "did you mean 'beta1'?"),
        (
            ["run", "diagonal_network", "--optimizer", "muon", "--set", "scale=2"],
            "both the testbed and the optimizer have a setting 'scale': write testbed.scale or",
        ),
        (["run", RELU, "--set", "d_hidden"], "--set: must be NAME=VALUE, got 'd_hidden'"),
        (["run", RELU, "--set", "d_hidden=two"], "option d_hidden must be a whole number, got"),
        (["run", RELU, "--set", "data_seed=-1"], "option data_seed must be a whole number >= 0"),
        (["run", RELU, "--steps", "0"], "--steps: must be a whole number, from 1 to"),
        (["run", RELU, "--steps", "5", "--warmup", "5"], "option steps must be > warmup"),
        (["run", RELU, "--seeds", "1,-2"], "--seeds: must be a whole number, from 0 to"),
        (["run", RELU, "--lr", "fast"], "--lr"),
        (["run", RELU, "--dtype", "float16"], "float16 not in {float32,float64}"),
        (["run", RELU, "--every", "0"], "--every: must be a whole number, from 1"),
        (["run", RELU, "--threads", "0"], "--threads: must be a whole number, from 1"),
        (["run", RELU, "--stop", "loss"], "--stop: must be NAME=VALUE, got 'loss'"),
        (["run", RELU, "--stop", "loss=low"], "--stop: must be METRIC=NUMBER, got 'loss=low'"),
        (["run", "--resume", "none", "--lr", "5"], "--resume excludes --lr"),
        (["experiment", "contaiment"], "did you mean 'containment'? (ddc list experiments)"),
        (["experiment", "diagonal", "--jobs", "0"], "--jobs: must be a whole number, from 1"),
        (["compare", "one"], "B is required"),
        (["report"], "DIR is required"),
    ],
)
def test_a_wrong_call_says_what_is_wrong_and_writes_nothing(tmp_path, arguments, said):
    result = ddc(*arguments, cwd=tmp_path)
    assert result.returncode == USAGE
    assert said in result.stderr
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_nothing_is_a_failure_that_names_it(tmp_path):
    for arguments in (["run", "--resume"], ["compare", "none"], ["report"]):
        result = ddc(*arguments, tmp_path / "nothing")
        assert result.returncode == FAILURE
        assert "nothing" in result.stderr or "none" in result.stderr


# --- list ----------------------------------------------------------------------------------------


def test_the_list_has_a_line_for_everything_that_can_be_named():
    everything = printed_json("list")
    assert set(everything) == {"testbeds", "optimizers", "meters", "experiments", "models"}
    lines = succeed("list").stdout.splitlines()
    for kind, entries in everything.items():
        names = [entry["name"] for entry in entries]
        assert len(set(names)) == len(names) > 0
        assert printed_json("list", kind) == entries
        for entry in entries:
            assert entry["description"]
            assert any(line.split()[:1] == [entry["name"]] for line in lines)


def test_a_testbed_is_described_with_the_settings_that_run_accepts(tmp_path):
    described = printed_json("list", "testbeds", RELU)
    defaults = {setting["name"]: setting["default"] for setting in described["settings"]}
    shown = succeed("list", "testbeds", RELU).stdout
    assert all(f"  {name} " in shown for name in defaults)
    given = [f"{name}={json.dumps(value)}" for name, value in defaults.items()]
    settings = ["--set", *given, "--steps", 2, "--out", tmp_path]
    run = printed_json("run", RELU, *settings)["runs"][0]
    assert run["config"]["testbed_settings"] == defaults


def test_an_experiment_is_described_with_its_arms_runs_and_seeds():
    described = printed_json("list", "experiments", "diagonal")
    assert described["full"]["runs"] == len(described["full"]["arms"]) * 5
    assert described["full"]["seeds"] == [42, 142, 242, 342, 442]
    assert "42, 142, 242, 342, 442" in succeed("list", "experiments", "diagonal").stdout


# --- run -----------------------------------------------------------------------------------------


def test_a_run_leaves_a_folder_that_other_tools_can_read(tmp_path):
    folder = f"out/runs/{RELU}-ddc-adam-seed7"
    arguments = ["run", RELU, "--optimizer", "ddc-adam", "--seeds", 7, "--steps", 30, *TINY]
    result = succeed(*arguments, cwd=tmp_path)
    assert folder in result.stdout
    config = json.loads((tmp_path / folder / "config.json").read_text())
    assert (config["seed"], config["threads"], config["steps"]) == (7, 1, 30)
    assert config["testbed_settings"]["d_hidden"] == 8
    assert set(config["versions"]) == {"ddc", "torch", "compiler"}
    metrics = (tmp_path / folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in metrics] == [0, 10, 20, 30]
    assert json.loads((tmp_path / folder / "summary.json").read_text())["status"] == "finished"
    assert (tmp_path / folder / "checkpoints" / "latest.safetensors").is_file()
    assert json.loads(metrics[-1])["drift"] < 1e-6


def test_the_recipe_of_a_testbed_is_for_adam_and_other_optimizers_have_their_own(tmp_path):
    recipe = printed_json("list", "testbeds", RELU)["recipe"]
    for entry in printed_json("list", "optimizers"):
        name = entry["name"]
        defaults = {setting["name"]: setting["default"] for setting in entry["settings"]}
        arguments = ["--optimizer", name, "--steps", 3, "--out", tmp_path / name]
        run = printed_json("run", RELU, *TINY, *arguments)["runs"][0]
        lr = recipe["lr"] if "beta1" in defaults else defaults["lr"]
        assert run["config"]["optimizer_settings"]["lr"] == lr
        assert run["status"] == "finished"
    given = ["--lr", 0.25, "--wd", 0.5, "--steps", 3, "--out", tmp_path / "given"]
    config = printed_json("run", RELU, *given)["runs"][0]["config"]
    assert config["optimizer_settings"]["lr"] == 0.25
    assert config["optimizer_settings"]["weight_decay"] == 0.5


def test_a_setting_that_both_have_says_whose_it_is(tmp_path):
    given = ["--set", "testbed.scale=0.5", "optimizer.scale=frobenius", "--steps", 2]
    arguments = ["diagonal_network", "--optimizer", "muon", *given, "--out", tmp_path]
    config = printed_json("run", *arguments)["runs"][0]["config"]
    assert config["testbed_settings"]["scale"] == 0.5
    assert config["optimizer_settings"]["scale"] == "frobenius"


def test_the_same_seed_is_the_same_to_the_last_bit_and_another_is_not(tmp_path):
    first = train(tmp_path / "first")
    assert train(tmp_path / "second") == first
    assert train(tmp_path / "other", "--seeds", 43) != first
    said = succeed("compare", tmp_path / "first", tmp_path / "second").stdout
    assert "identical to the last bit" in said


def test_several_seeds_have_a_folder_each(tmp_path):
    runs = printed_json("run", RELU, *TINY, "--steps", 20, "--seeds", "1,2", "--out", tmp_path)[
        "runs"
    ]
    assert [run["folder"] for run in runs] == [str(tmp_path / "seed1"), str(tmp_path / "seed2")]
    assert (tmp_path / "seed1" / "metrics.jsonl").read_bytes() == train(
        tmp_path / "alone", "--seeds", 1, steps=20
    )


def test_a_run_stops_where_a_metric_is_reached(tmp_path):
    stop = ["--stop", "step_is_none=1"]
    result = ddc("run", RELU, *TINY, "--steps", 20, "--out", tmp_path / "none", *stop)
    assert result.returncode == USAGE
    assert f"testbed '{RELU}' does not observe 'step_is_none'" in result.stderr
    stop = ["--stop", "loss=0"]
    run = printed_json("run", RELU, *TINY, "--steps", 20, "--out", tmp_path / "now", *stop)["runs"][
        0
    ]
    assert (run["status"], run["step"]) == ("reached", 0)


def test_a_finished_run_is_not_repeated(tmp_path):
    train(tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    run = printed_json("run", "--resume", tmp_path / "run")["runs"][0]
    assert (run["status"], run["finished_before"]) == ("finished", True)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before


def test_a_finished_run_goes_on_to_more_steps(tmp_path):
    whole = train(tmp_path / "whole")
    folder = tmp_path / "run"
    train(folder, steps=90)
    run = printed_json("run", "--resume", folder, "--steps", 200)["runs"][0]
    assert (run["status"], run["step"]) == ("finished", 200)
    assert (folder / "metrics.jsonl").read_bytes() == whole
    result = ddc("run", "--resume", folder, "--steps", 200)
    assert result.returncode == USAGE
    assert "option steps must be > 200" in result.stderr


def test_a_folder_of_another_run_is_refused_and_stays_as_it_was(tmp_path):
    metrics = train(tmp_path / "run")
    result = ddc("run", RELU, *TINY, "--steps", 200, "--lr", 0.5, "--out", tmp_path / "run")
    assert result.returncode == USAGE
    assert "holds another run (optimizer_settings/lr is 0.005 there, not 0.5)" in result.stderr
    assert "--out" in result.stderr
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == metrics


def test_an_interrupted_run_says_how_to_go_on_and_goes_on_to_the_last_bit(tmp_path):
    expected = train(tmp_path / "expected").splitlines()
    folder = tmp_path / "it's one"
    process = start("run", RELU, *TINY, "--steps", WITHOUT_END, "--out", folder)
    said = interrupt(process, folder, 5)
    command = shlex.split(said.splitlines()[-1])
    assert command == [str(tool()), "run", "--resume", str(folder)]
    process = start(*command[1:])
    # Not before it has got somewhere: the first may have been interrupted late.
    lines = max(15, lines_of(folder / "metrics.jsonl") + 5)
    said = interrupt(process, folder, lines, signal.SIGTERM)
    assert "goes on at step" in said
    # Its last line stands for as many steps as there are, the other's is an end.
    assert (folder / "metrics.jsonl").read_bytes().splitlines()[:15] == expected[:15]


def test_an_interruption_leaves_the_later_seeds_to_the_command_that_goes_on(tmp_path):
    arguments = ["--seeds", "1,2", "--steps", WITHOUT_END, "--out", tmp_path, "--json"]
    process = start("run", RELU, *TINY, *arguments)
    assert wait_until(process, lambda: lines_of(tmp_path / "seed1" / "metrics.jsonl") > 1)
    process.send_signal(signal.SIGINT)
    printed, said = process.communicate(timeout=60)
    assert [run["status"] for run in json.loads(printed)["runs"]] == ["interrupted"]
    folders = [str(tmp_path / "seed1"), str(tmp_path / "seed2")]
    assert shlex.split(said.splitlines()[-1])[2:] == ["--resume", *folders]


def test_a_second_process_on_one_folder_is_refused(tmp_path):
    process = start("run", RELU, *TINY, "--steps", WITHOUT_END, "--out", tmp_path)
    assert wait_until(process, lambda: lines_of(tmp_path / "metrics.jsonl") > 0)
    result = ddc("run", "--resume", tmp_path)
    interrupt(process, tmp_path, 1)
    assert result.returncode == FAILURE
    assert f"is in use by process {process.pid}: wait until it ends" in result.stderr


def test_a_damaged_checkpoint_is_named_and_deleting_it_starts_over(tmp_path):
    process = start("run", RELU, *TINY, "--steps", WITHOUT_END, "--out", tmp_path)
    interrupt(process, tmp_path, 3)
    checkpoint = tmp_path / "checkpoints" / "latest.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    result = ddc("run", "--resume", tmp_path)
    assert result.returncode == FAILURE
    assert f"delete '{checkpoint}' to start the run over" in result.stderr
    checkpoint.unlink()
    (tmp_path / "metrics.jsonl").unlink()
    said = interrupt(start("run", "--resume", tmp_path), tmp_path, 3)
    assert "goes on" not in said


def test_bars_fit_the_terminal_and_leave_nothing_behind(tmp_path):
    frames = set()
    command = [tool(), "run", RELU, "--steps", "4000", "--seeds", "1,2", "--out", tmp_path]
    for columns in (100, 40):
        code, printed, screen = run_in_terminal(
            [*map(str, command), "--json"],
            columns,
            lambda process, screen: frames.add(screen.text()),
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
        assert (code, screen.wrapped, screen.text()) == (0, 0, "")
        assert all(run["status"] == "finished" for run in json.loads(printed)["runs"])
        shutil.rmtree(tmp_path)
    assert any("━" in frame and "loss" in frame and "drift" in frame for frame in frames)
    assert all(frame.count("\n") == 0 for frame in frames)


# --- experiment ----------------------------------------------------------------------------------

EXPERIMENT = ["experiment", "diagonal", "--quick", "--jobs", "2"]


def folder_in(out):
    return out / "quick" / "diagonal"


def written_in(out):
    """What an experiment finds out: the result, and the metrics of every run."""
    folder = folder_in(out)
    paths = [folder / "result.json", *sorted(folder.glob("runs/*/metrics.jsonl"))]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def evaluations_in(out):
    return sum(map(lines_of, folder_in(out).glob("runs/*/metrics.jsonl")))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    out = tmp_path_factory.mktemp("uninterrupted")
    return out, succeed(*EXPERIMENT, "--out", out)


@pytest.fixture
def copied(uninterrupted, tmp_path):
    out = tmp_path / "copied"
    shutil.copytree(uninterrupted[0], out)
    return out


def test_an_experiment_prints_its_table_and_writes_result_and_report(uninterrupted):
    out, shown = uninterrupted
    result = json.loads((folder_in(out) / "result.json").read_text())
    assert result["missing"] == []
    for row in result["table"]["rows"]:
        assert any(line.startswith(row[0] + " ") for line in shown.stdout.splitlines())
    report = folder_in(out) / "report.html"
    assert shown.stdout.splitlines()[-1] == f"report: {report}"
    assert "<html" in report.read_text()[:1000]
    runs = [folder.name for folder in (folder_in(out) / "runs").iterdir()]
    ended = [line.split(":")[0] for line in shown.stderr.splitlines()[1:]]
    assert sorted(ended) == sorted(runs)


def test_finished_runs_are_never_repeated(uninterrupted):
    out, _ = uninterrupted
    runs = folder_in(out) / "runs"
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*")}
    result = ddc(*EXPERIMENT, "--out", out, "--json")
    assert f"{len(list(runs.iterdir()))} of them finished already" in result.stderr
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("*")} == before
    printed = json.loads(result.stdout)
    assert printed["experiments"][0]["failed"] == []
    written = json.loads((folder_in(out) / "result.json").read_text())
    assert printed["experiments"][0]["result"] == written
    assert printed["reports"] == [str(folder_in(out) / "report.html")]


def test_an_experiment_that_is_killed_ten_times_finds_the_same(uninterrupted, tmp_path):
    expected = written_in(uninterrupted[0])
    points = random.Random(7).sample(range(evaluations_in(uninterrupted[0])), 10)
    for kill, point in zip([os.kill, os.killpg] * 5, sorted(points), strict=True):
        process = start(*EXPERIMENT, "--out", tmp_path)
        if wait_until(process, lambda point=point: evaluations_in(tmp_path) > point):
            # Without its group: the runs under way are orphans that save, and then end.
            kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
    succeed(*EXPERIMENT, "--out", tmp_path)
    assert written_in(tmp_path) == expected


def test_two_processes_on_one_experiment_find_the_same(uninterrupted, tmp_path):
    both = [start(*EXPERIMENT, "--out", tmp_path) for _ in range(2)]
    said = [process.communicate(timeout=60)[1] for process in both]
    # The second one goes on with what is left, or says by name what the first one is at.
    assert 0 in [process.returncode for process in both], said
    assert all(
        p.returncode == 0 or "lock" in s or "another" in s for p, s in zip(both, said, strict=True)
    )
    succeed(*EXPERIMENT, "--out", tmp_path)
    assert written_in(tmp_path) == written_in(uninterrupted[0])


def send(process, number):
    """Sends a signal, unless the process is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


def halfway(out, whole):
    """Runs that have begun and are far from their end."""
    return [
        path.parent
        for path in folder_in(out).glob("runs/*/metrics.jsonl")
        if 0 < lines_of(path) < lines_of(folder_in(whole) / path.relative_to(folder_in(out))) / 2
    ]


def test_an_interrupted_experiment_says_how_to_go_on(uninterrupted, tmp_path):
    process = start(*EXPERIMENT, "--out", tmp_path)
    stopped = []

    def stopped_halfway():
        stopped[:] = children_of(process)
        for run in stopped:
            send(run, signal.SIGSTOP)
        if halfway(tmp_path, uninterrupted[0]):
            return True
        for run in stopped:
            send(run, signal.SIGCONT)
        return False

    assert wait_until(process, stopped_halfway)
    under_way = halfway(tmp_path, uninterrupted[0])
    os.killpg(process.pid, signal.SIGINT)
    for run in stopped:
        send(run, signal.SIGCONT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED
    assert "failed" not in said
    command = shlex.split(said.splitlines()[-1])
    assert command == [str(tool()), *EXPERIMENT, "--out", str(tmp_path)]
    for folder in under_way:
        assert (folder / "checkpoints").exists()
        assert not (folder / "summary.json").exists()
    succeed(*command[1:])
    assert written_in(tmp_path) == written_in(uninterrupted[0])


def handles(process, number):
    status = open(f"/proc/{process.pid}/status").read()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return int(caught.split()[1], 16) >> (number - 1) & 1


def children_of(process):
    return [
        int(pid) for pid in open(f"/proc/{process.pid}/task/{process.pid}/children").read().split()
    ]


def test_an_experiment_waits_for_its_runs_to_save_and_a_second_interruption_does_not(tmp_path):
    process = start(*EXPERIMENT, "--out", tmp_path)
    assert wait_until(process, lambda: evaluations_in(tmp_path) > 0)
    runs = children_of(process)
    for run in runs:
        os.kill(run, signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    assert wait_until(process, lambda: not handles(process, signal.SIGINT))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    for run in runs:
        os.kill(run, signal.SIGCONT)


def test_a_run_that_fails_is_named_and_the_others_go_on(copied):
    runs = sorted((folder_in(copied) / "runs").iterdir())
    for run in runs[:2]:
        (run / "summary.json").unlink()
    (runs[0] / "checkpoints" / "latest.safetensors").write_bytes(b"nonsense")
    result = ddc(*EXPERIMENT, "--out", copied)
    assert result.returncode == FAILURE
    assert f"{runs[0].name}: failed: " in result.stderr
    assert f"delete '{runs[0] / 'checkpoints' / 'latest.safetensors'}'" in result.stderr
    assert (runs[1] / "summary.json").exists()
    written = json.loads((folder_in(copied) / "result.json").read_text())
    assert written["missing"] == [runs[0].name]


def test_evaluate_reports_on_what_is_finished_and_runs_nothing(copied):
    folder = copied / "quick" / "diagonal"
    (folder / "runs" / "sgd-seed42" / "summary.json").unlink()
    result = ddc("experiment", "diagonal", "--quick", "--evaluate", "--out", copied)
    assert result.returncode == 0, result.stderr
    assert "1 run is missing:\n  sgd-seed42\n" in result.stdout
    assert json.loads((folder / "result.json").read_text())["missing"] == ["sgd-seed42"]
    assert not (folder / "runs" / "sgd-seed42" / "summary.json").exists()


def test_runs_of_another_plan_are_refused(copied):
    run = sorted((folder_in(copied) / "runs").iterdir())[0]
    config = json.loads((run / "config.json").read_text())
    config["steps"] += 1
    (run / "config.json").write_text(json.dumps(config))
    result = ddc(*EXPERIMENT, "--out", copied)
    assert result.returncode == USAGE
    assert f"1 of its runs differ, such as runs/{run.name} (steps is" in result.stderr
    assert "delete the folder to start over, or choose another with --out" in result.stderr


def test_bars_of_an_experiment_leave_only_what_is_said(copied):
    for run in (folder_in(copied) / "runs").iterdir():
        if run.name.startswith("sgd"):
            shutil.rmtree(run)
    frames = set()
    code, printed, screen = run_in_terminal(
        [str(tool()), *EXPERIMENT, "--out", str(copied)],
        60,
        lambda process, screen: frames.add(screen.text()),
    )
    assert (code, screen.wrapped) == (0, 0)
    assert screen.text().count("\n") == 0
    assert "finished already" in screen.text()
    assert any("sgd-seed42 " in frame and "\ntogether" in frame for frame in frames)
    assert "report: " in printed


# --- compare and report --------------------------------------------------------------------------


def test_compare_shows_what_two_runs_differ_in(tmp_path):
    train(tmp_path / "a")
    train(tmp_path / "b", "--lr", 0.05)
    losses = {}
    for side in ("a", "b"):
        lines = (tmp_path / side / "metrics.jsonl").read_text().splitlines()
        losses[side] = {line["step"]: line["loss"] for line in map(json.loads, lines)}
    level = max(losses["a"][200], losses["b"][200])
    levels = ["--level", f"loss={level}", "--level", "loss=0"]
    json_of = printed_json("compare", tmp_path / "a", tmp_path / "b", *levels)
    assert json_of["options"] == {"optimizer_settings/lr": {"a": 0.005, "b": 0.05}}
    assert not json_of["identical"]
    # The first step is made at step 0: at step 10 the weights differ.
    assert json_of["first_difference"]["step"] == 10
    reached, never = json_of["reached"]
    for side in ("a", "b"):
        assert reached[side] == min(step for step, loss in losses[side].items() if loss <= level)
        assert never[side] is None
    shown = succeed("compare", tmp_path / "a", tmp_path / "b", *levels).stdout
    assert ["optimizer_settings/lr", "0.005", "0.05"] in map(str.split, shown.splitlines())
    assert "first differ at step 10, in drift" in shown
    train(tmp_path / "longer", steps=210)
    shown = succeed("compare", tmp_path / "a", tmp_path / "longer").stdout
    assert "the same until only one of them has step 210" in shown
    result = ddc("compare", tmp_path / "a", tmp_path / "b", "--level", "los=5")
    assert "unknown metric 'los'; did you mean 'loss'?" in result.stderr


def test_compare_shows_results_arm_by_arm(uninterrupted, copied):
    paths = [folder_in(uninterrupted[0]), folder_in(copied) / "result.json"]
    assert "results: identical to the last bit" in succeed("compare", *paths).stdout
    result = json.loads(paths[1].read_text())
    column, arm = result["table"]["columns"][-1], result["table"]["rows"][0][0]
    result["table"]["rows"][0][-1] = "changed"
    paths[1].write_text(json.dumps(result))
    compared = printed_json("compare", *paths)
    assert not compared["identical"]
    assert compared["table"][arm][column]["b"] == "changed"
    run = sorted((folder_in(copied) / "runs").iterdir())[0]
    mixed = ddc("compare", paths[0], run)
    assert mixed.returncode == FAILURE
    assert f"'{run}' is a run, and '{paths[0]}' is the result" in mixed.stderr


def test_report_names_the_pages_that_it_writes(copied):
    page = folder_in(copied) / "report.html"
    page.unlink()
    assert succeed("report", folder_in(copied)).stdout.split() == [str(page)]
    assert page.exists()
    several = succeed("report", copied / "quick").stdout.split()
    assert several == [str(copied / "quick" / name) for name in ("diagonal.html", "index.html")]
    written = succeed("report", folder_in(copied), "--markdown").stdout.split()
    assert written == [str(folder_in(copied) / "README.md")]
    assert "| arm |" in (folder_in(copied) / "README.md").read_text()


# ---- Faults ---------------------------------------------------------------------------------------


def test_a_terminal_that_is_closed_is_an_interruption(tmp_path):
    process = start("run", RELU, *TINY, "--steps", WITHOUT_END, "--out", tmp_path / "run")
    assert wait_until(process, lambda: lines_of(tmp_path / "run" / "metrics.jsonl") > 1)
    process.send_signal(signal.SIGHUP)
    _, err = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED
    assert "interrupted, and saved" in err
    assert (tmp_path / "run" / "checkpoints" / "latest.safetensors").exists()


def test_a_refused_option_leaves_no_folder(tmp_path):
    folder = tmp_path / "run"
    for arguments, said in (
        (["--lr", "nan"], "lr"),
        (["--stop", "loss=nan"], "METRIC=NUMBER"),
        (["--stop", "loss=inf"], "METRIC=NUMBER"),
        (["--threads", "1000000"], "threads must be from 1 to 1024"),
        (["--set", "coordinates=polar", "placement=canonical"], "coordinates=polar"),
    ):
        result = ddc("run", RELU, "--out", folder, *arguments, "--optimizer", "ddc-adam")
        assert result.returncode == USAGE, arguments
        assert said in result.stderr
        assert "json.exception" not in result.stderr and "sto" not in result.stderr.split()
        assert not folder.exists()
    succeed("run", RELU, *TINY, "--steps", 20, "--out", folder, "--quiet")


def test_a_full_disk_is_named_and_the_run_goes_on_when_there_is_room(tmp_path):
    """A limit on the size of files stands for it."""
    import resource

    expected = train(tmp_path / "whole", steps=60)

    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))

    run = tmp_path / "run"
    arguments = ["run", RELU, *TINY, "--steps", 60, "--out", run, "--quiet"]
    result = ddc(*arguments, preexec_fn=limited)
    assert result.returncode == FAILURE
    assert "latest.safetensors" in result.stderr or "metrics.jsonl" in result.stderr
    assert not list((run / "checkpoints").glob(".*")), "a temporary file was left"
    succeed(*arguments)
    assert (run / "metrics.jsonl").read_bytes() == expected


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "out").write_text("no folder")
    result = ddc("run", RELU, *TINY, "--steps", 20, "--out", tmp_path / "out" / "run")
    assert result.returncode == FAILURE
    assert str(tmp_path / "out") in result.stderr


def test_a_folder_that_cannot_be_written_is_named():
    result = ddc("run", RELU, *TINY, "--steps", 20, "--out", "/proc/run")  # not even by root
    assert result.returncode == FAILURE
    assert "/proc/run" in result.stderr

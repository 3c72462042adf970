"""The command line tool `ddc`: exit codes, and what goes to which stream. Needs the C++ build."""

import json
import os
import pty

import pytest
from cli_support import FAILURE, REPO_ROOT, USAGE, ddc


def audit(*arguments):
    result = ddc("audit", *arguments)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def listed():
    return [line.split()[0] for line in audit("--list").splitlines()]


@pytest.fixture(scope="module")
def group():
    return json.loads(audit("mlp", "--json"))


def test_help_and_version_are_no_errors():
    assert "audit" in ddc("--help").stdout
    assert "--engagement" in audit("--help")
    version = (REPO_ROOT / "include" / "ddc" / "version.h").read_text()
    assert f'"{ddc("--version").stdout.strip()}"' in version


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Usage: ddc"),
        (["audti"], "audti"),
        (["audit"], "MODEL (see ddc audit --list) is required"),
        (["audit", "mpl"], "unknown model 'mpl'; did you mean 'mlp'? (ddc audit --list)"),
        (["audit", "layernorm-block"], "did you mean 'layer_norm_block'?"),
        (["audit", "zzzzzzzz"], "unknown model 'zzzzzzzz'; there are "),
        (["audit", ""], "unknown model ''"),
        (["audit", "mlp", "--fast"], "--fast"),
        (["audit", "mlp", "vit_block"], "vit_block"),
        (["audit", "mlp", "--dtype", "float16"], "float16 not in {float64,float32}"),
        (["audit", "mlp", "--seed", "-1"], "--seed: must be a whole number, from 0 to"),
        (["audit", "mlp", "--seed", "one"], "got 'one'"),
        (["audit", "mlp", "--seed", "99999999999999999999"], "--seed: must be"),
        (["audit", "mlp", "--engagement", "-3"], "--engagement: must be a whole number"),
        (["audit", "mlp", "--out"], "--out"),
    ],
)
def test_a_wrong_call_says_what_is_wrong_on_standard_error(arguments, said):
    result = ddc(*arguments)
    assert result.returncode == USAGE
    assert said in result.stderr
    assert result.stdout == ""


def test_the_list_has_the_built_in_models():
    names = listed()
    assert len(names) == len(set(names))
    assert {"mlp", "layer_norm_block", "rms_norm_block", "gpt_j_block", "vit_block"} <= set(names)


def test_the_table_has_a_line_per_gauge(group):
    lines = audit("mlp").splitlines()
    assert lines[0].startswith("mlp, float64: 756 parameters in 8 tensors")
    header = next(i for i, line in enumerate(lines) if line.startswith("gauge "))
    for finding, line in zip(group["findings"], lines[header + 1 : header + 4], strict=True):
        assert line.startswith(finding["gauge"]["name"] + " ")
        assert line.endswith("verified")
    assert "all together: 3 gauges of dimension 48" in lines[header + 4]


def test_json_holds_the_rescaling_of_each_hidden_layer(group):
    assert (group["format"], group["version"]) == ("ddc symmetries", 2)
    assert len(group["parameters"]) == 8
    found = set()
    for finding in group["findings"]:
        assert finding["dimension"] == 16
        assert finding["residual"] <= finding["tolerance"]
        legs = finding["gauge"]["legs"]
        sign = 1 if legs[0]["exponent"] > 0 else -1
        found.add(frozenset((leg["tensor"], leg["axis"], sign * leg["exponent"]) for leg in legs))
    into = [{(f"layers.{k}.weight", 0, 1), (f"layers.{k}.bias", 0, 1)} for k in range(3)]
    out_of = [{(f"layers.{k + 1}.weight", 1, -1)} for k in range(3)]
    expected = [frozenset(a | b) for a, b in zip(into, out_of, strict=True)]
    flipped = [frozenset((name, axis, -e) for name, axis, e in legs) for legs in expected]
    assert len(found) == 3
    assert all(a in found or b in found for a, b in zip(expected, flipped, strict=True))


def test_completeness_and_engagement_are_measured_as_asked(group):
    assert group["completeness"]["explained"] == 48
    assert not any("engagement" in finding for finding in group["findings"])
    asked = json.loads(audit("mlp", "--json", "--no-completeness", "--engagement", 3))
    assert "completeness" not in asked
    assert all(finding["engagement"]["engaged"] for finding in asked["findings"])


def test_out_stores_what_json_prints(tmp_path):
    path = tmp_path / "mlp.symmetries.json"
    table = audit("mlp", "--out", path, "--seed", 5)
    assert table.startswith("mlp, ")
    assert path.read_text() == audit("mlp", "--json", "--seed", 5)


def test_float32_is_audited_at_its_own_precision(group):
    coarse = json.loads(audit("mlp", "--json", "--dtype", "float32", "--no-completeness"))
    assert len(coarse["findings"]) == 3
    for fine, other in zip(group["findings"], coarse["findings"], strict=True):
        assert other["tolerance"] > 1e3 * fine["tolerance"]


def test_what_cannot_be_written_is_a_failure(tmp_path):
    path = tmp_path / "none" / "mlp.json"
    result = ddc("audit", "mlp", "--no-completeness", "--out", path)
    assert result.returncode == FAILURE
    assert str(path) in result.stderr
    assert "verified" in result.stdout
    with open("/dev/full", "w") as full:
        result = ddc("audit", "mlp", "--no-completeness", "--json", stdout=full)
    assert result.returncode == FAILURE
    assert "standard output" in result.stderr


def test_progress_is_for_a_terminal_only():
    ours, theirs = pty.openpty()
    result = ddc("audit", "mlp", "--json", stderr=theirs)
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert result.returncode == 0
    assert json.loads(result.stdout)["version"] == 2
    assert " ..." in shown
    assert shown.endswith("\r\x1b[K")

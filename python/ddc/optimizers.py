"""The optimizers: one class for each base rule of the C++ library.

Signatures and lists of options are made from the library's own declarations; ``optimizers.pyi`` says the
same to type checkers (``scripts/stubs.py`` writes it, and a test compares).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from torch import Tensor

from ddc import _C
from ddc._model import check_whole
from ddc._options import (
    TREATMENT,
    Declaration,
    declarations,
    numpydoc,
    signature,
    split_betas,
)
from ddc.optim import Lifted, Params, StateDict, Symmetries, declared_rules
from ddc.routing import Route, Routing, route

_RULES = declared_rules()

_DOC = """{help}.

    {summary}

    Parameters
    ----------
    params : iterable
        ``model.named_parameters()``, or dicts of them that define param groups. Names are what
        symmetries find their parameters by; without symmetries ``model.parameters()`` will do.
{options}
    symmetries : SymmetryGroup or list of Gauge, optional
        From :func:`ddc.discover`, or wired by hand (:mod:`ddc.gauges`).
    recipe : str, default 'default'
        Named set of gauges, treatments and options: 'default', or 'paper' (docs/paper.md).
{more}
    Treatment of the symmetries, each a value for all gauges or a dict by kind or name of a gauge:

{treatment}
"""


def _dress(cls: type[Lifted], summary: str, more: str = "") -> None:
    rule = _RULES[cls._rule]
    declared = _taken(cls)
    names = ("adam", "use_adam") if more else ()
    cls.__signature__ = signature(declared, names)  # type: ignore[attr-defined]
    cls.__doc__ = _DOC.format(
        help=rule["help"].rstrip("."),
        summary=summary,
        options=numpydoc(declared),
        more=more,
        treatment=numpydoc(TREATMENT.values()),
    )


def _taken(cls: type[Lifted]) -> list[Declaration]:
    """Options that the constructor takes. DDCMuon's of Adam are in `adam`."""
    apart = ("use_adam", "betas", "eps") if cls._rule == "DDCMuon" else ()
    return [each for each in cls._declared if each.name not in apart]


class DDCAdam(Lifted):
    _rule = "DDCAdam"
    _declared: ClassVar = declarations(_RULES["DDCAdam"]["options"])


class DDCSgd(Lifted):
    _rule = "DDCSgd"
    _declared: ClassVar = declarations(_RULES["DDCSgd"]["options"])


class DDCLion(Lifted):
    _rule = "DDCLion"
    _declared: ClassVar = declarations(_RULES["DDCLion"]["options"])


class DDCShampoo(Lifted):
    _rule = "DDCShampoo"
    _declared: ClassVar = declarations(_RULES["DDCShampoo"]["options"])


class DDCSoap(Lifted):
    _rule = "DDCSoap"
    _declared: ClassVar = declarations(_RULES["DDCSoap"]["options"])


_ADAM = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2}
_MUON_ONLY = ("momentum", "nesterov", "method", "scale")

UseAdam = Iterable[str] | Callable[[str, Tensor], bool] | bool | None


def _adam_options(defaults: Mapping[str, Any], given: Mapping[str, Any] | None) -> dict[str, Any]:
    for option in given or {}:
        if option not in _ADAM:
            raise ValueError(f"adam has no option '{option}'; it has {', '.join(_ADAM)}")
    options = {**defaults, **(given or {})}
    try:
        _C.check_options("DDCAdam", split_betas(options))
    except ValueError as error:
        raise ValueError(f"adam: {error}") from None
    return options


class DDCMuon(Lifted):
    _rule = "DDCMuon"
    _declared: ClassVar = declarations(_RULES["DDCMuon"]["options"])

    def __init__(
        self,
        params: Params,
        *args: Any,
        symmetries: Symmetries | None = None,
        adam: Mapping[str, Any] | None = None,
        use_adam: UseAdam = None,
        **options: Any,
    ) -> None:
        for option in ("betas", "eps"):
            if option in options:
                raise TypeError(f"{option} is an option of Adam: pass adam=dict({option}=...)")
        self._adam = _adam_options(_ADAM, adam)
        self._use_adam = use_adam
        self._routes: list[Route] = []
        self._roles = getattr(symmetries, "roles", {})
        super().__init__(params, *args, symmetries=symmetries, **options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, in two where Muon steps some of them and Adam the others.

        A group that says itself who steps it, ``use_adam=True`` or ``False``, stays in one. In others
        ``adam`` may have options of what Adam steps of them.
        """
        if "use_adam" in param_group:
            super().add_param_group(param_group)
            return
        members = param_group["params"]
        members = [members] if isinstance(members, Tensor) else list(members)
        names = param_group.get("param_names")
        if not members:
            super().add_param_group({"use_adam": False, **param_group})
            return
        split: dict[bool, list[Any]] = {False: [], True: []}
        for index, member in enumerate(members):
            name, tensor = member if isinstance(member, tuple) else (None, member)
            if name is None and names is not None:
                name = names[index]
            if isinstance(tensor, Tensor):
                check_whole([(str(name or f"param{index}"), tensor)])
            self._routes.append(route(name, tensor, self._roles, self._use_adam))
            split[self._routes[-1].use_adam].append(
                member if names is None else (names[index], tensor)
            )
        rest = {k: v for k, v in param_group.items() if k not in ("params", "param_names", "adam")}
        present = len(self.param_groups)
        try:
            if split[False]:
                super().add_param_group({**rest, "params": split[False], "use_adam": False})
            if split[True]:
                of_adam = {k: v for k, v in rest.items() if k not in (*_ADAM, *_MUON_ONLY)}
                adam = _adam_options(self._adam, param_group.get("adam"))
                super().add_param_group(
                    {**of_adam, **adam, "params": split[True], "use_adam": True}
                )
        except Exception:
            del self.param_groups[present:]
            del self._routes[-len(members) :]
            raise

    def routing(self) -> Routing:
        """Table of who steps which tensor, and why."""
        return Routing(self._routes)

    def _upgraded(self, given: StateDict) -> StateDict:
        if any("adam_lr_at" in group for group in given["param_groups"]):
            raise ValueError(
                "state dict: it was written by DDCMuon of ddc 0.1, whose param groups held what Adam "
                "steps as well. Here that is a param group of its own: start a new optimizer at the "
                "checkpoint's weights, or finish the run with 0.1"
            )
        return super()._upgraded(given)

    def __getstate__(self) -> dict[str, Any]:
        own = {key: getattr(self, key) for key in ("_adam", "_use_adam", "_routes", "_roles")}
        return {**super().__getstate__(), **own}


class Muon(DDCMuon):
    """Muon without symmetries: torch.optim.Muon, and AdamW for what is no matrix.

    Defaults are those of :class:`torch.optim.Muon`. Embeddings, the output layer and vectors are stepped by
    AdamW, in a param group of their own (`adam`, `use_adam`: as for :class:`DDCMuon`).
    """

    _declared: ClassVar = [
        Declaration(
            d.name,
            {"lr": 1e-3, "method": "newton_schulz"}.get(d.name, d.default),
            d.type,
            d.rule,
            d.help,
            d.positional,
        )
        for d in DDCMuon._declared
    ]

    def __init__(self, params: Params, *args: Any, **options: Any) -> None:
        for option in ("symmetries", "recipe", *TREATMENT):
            if option in options:
                raise TypeError(f"Muon has no option '{option}'; DDCMuon has")
        super().__init__(params, *args, **options)


_dress(
    DDCAdam,
    "Two copies of a model that compute the same function, written down differently, stay the same\n"
    "    function in training; plain AdamW takes them apart. Without symmetries it is\n"
    "    :class:`torch.optim.AdamW`.",
)
_dress(DDCSgd, "Without symmetries it is :class:`torch.optim.SGD` with decoupled weight decay.")
_dress(
    DDCLion, "Lion as in arXiv:2302.06675; entries below `eps` move in proportion to their size."
)
_dress(DDCShampoo, "Shampoo as in arXiv:1802.09568, with an average of the gradients.")
_dress(DDCSoap, "SOAP as in arXiv:2409.11321.")
_dress(
    DDCMuon,
    "Matrices are stepped by the polar factor of their momentum, taken in coordinates that no\n"
    "    symmetry changes (per head of attention projections). Vectors, embeddings and the output layer\n"
    "    are stepped by Adam, in a param group of their own; :meth:`routing` says which, and why.",
    "    adam : dict, optional\n"
    "        Options of what Adam steps: ``lr``, ``betas``, ``eps``, ``weight_decay``.\n"
    "    use_adam : iterable of str or callable, optional\n"
    "        Names (or patterns of :mod:`fnmatch`) of what Adam is to step instead of what the optimizer\n"
    "        would choose, or a function of name and tensor. Vectors always are.\n",
)
Muon.__signature__ = signature(  # type: ignore[attr-defined]
    _taken(Muon), ("adam", "use_adam"), symmetries=False
)

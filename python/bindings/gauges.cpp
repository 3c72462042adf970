#include <algorithm>
#include <limits>
#include <sstream>

#include "bindings.h"
#include "ddc/gauge/gauge.h"
#include "gauge/gauge_fields.h"

namespace ddc::python {
namespace {

Action action_of(const std::string& word) {
  const std::vector<std::string> words(EnumNames<Action>.begin(), EnumNames<Action>.end());
  const auto found = std::find(words.begin(), words.end(), word);
  TORCH_CHECK_VALUE(found != words.end(), unknown("action", word, words));
  return static_cast<Action>(found - words.begin());
}

template <class T>
std::string written(const T& value) {
  return fields_json::Writer::written(value, "").dump();
}

/// Pickling through the JSON of symmetry files.
template <class T>
auto pickled() {
  return py::pickle([](const T& value) { return py::make_tuple(written(value)); },
                    [](const py::tuple& state) {
                      const auto json = io::parse_json<fields_json::json>(
                          state[0].cast<std::string>(), "pickle: the text");
                      fields_json::Reader reader(json, "", std::numeric_limits<int64_t>::max());
                      T value;
                      fields(reader, value);
                      return value;
                    });
}

template <class... Parts>
py::ssize_t hash_of(Parts&&... parts) {
  return py::hash(py::make_tuple(std::forward<Parts>(parts)...));
}

constexpr const char* kReadingDoc =
    R"(Affine part of a norm, through which a weight reads the normalised vector.

With gain and shift of the norm and the bias beside the weight that is W (gain * n + shift) + bias. A
leg with a reading acts on W diag(gain), and leaves W shift + bias unchanged.

Parameters
----------
gain, shift, bias : str
    Names of the tensors. Empty: there is none.
gain_offset : float
    The gain is the tensor plus this: 1 for norms that store it as (1 + w).
)";

constexpr const char* kLegDoc =
    R"(Part of one tensor in a gauge: along an axis, which index belongs to which channel.

Parameters
----------
tensor : str
    Name of the tensor in ``model.named_parameters()``.
axis : int
    Axis that the group acts along. -1, for shifts alone: the tensor is one row beside those of a table.
exponent : float
    Power of the factor (scales), coefficient that the vector is added with (shifts), or 1 and -1 for the
    matrix and its inverse transpose (linear gauges).
channel_of : list of int
    Channel of each index; -1 where the group does not act. Empty: channels are indices.
offset : float
    The group acts on the tensor plus this: 1 for norms that store their gain as (1 + w).
through : Reading, optional
    Norm through which the tensor reads.
head_size : int
    The axis consists of attention heads of this size, which Muon steps one by one. 0: it does not.
stacked : bool
    For scales: the tensor is a stack along its first axis, as the experts of a layer are, and
    ``channel_of`` has an entry for every pair of an index of the first axis and one of ``axis``.
)";

constexpr const char* kGaugeDoc =
    R"(Group that acts on parameters of a network and leaves its function alone, as a list of legs.

:mod:`ddc.gauges` makes the usual ones. :func:`ddc.testing.gauge_invariants` checks one of your own.

Parameters
----------
name : str
    Name, unique among the gauges of one optimizer.
action : {'scale', 'shift', 'rotation', 'linear', 'exchange'}
    What the group does to the entries of a channel: multiplies them by a positive number, adds a
    vector to them, turns blocks of channels, multiplies these by a matrix; or moves a vector into
    the biases of those who read it.
legs : list of Leg
    Who is acted on. The first leg gives the unit in folded coordinates.
channels : int
    Number of channels.
block : int
    Number of channels that one matrix mixes, for rotations and linear gauges.
kind : str
    Kind, for people, and for treatments of all gauges of a kind.
fixes_ones : bool
    Whether a rotation leaves the vector of ones alone, as it must where LayerNorms read.

Examples
--------
>>> gauge = ddc.Gauge("mlp", "scale", channels=8, legs=[
...     ddc.Leg("0.weight", axis=0, exponent=1),
...     ddc.Leg("0.bias", axis=0, exponent=1),
...     ddc.Leg("2.weight", axis=1, exponent=-1)])
)";

}  // namespace

void bind_gauges(py::module_& module) {
  py::class_<Reading>(module, "Reading", kReadingDoc)
      .def(py::init([](std::string gain, double gain_offset, std::string shift, std::string bias) {
             return Reading{std::move(gain), gain_offset, std::move(shift), std::move(bias)};
           }),
           py::kw_only(), py::arg("gain") = "", py::arg("gain_offset") = 0.0, py::arg("shift") = "",
           py::arg("bias") = "")
      .def_readonly("gain", &Reading::gain)
      .def_readonly("gain_offset", &Reading::gain_offset)
      .def_readonly("shift", &Reading::shift)
      .def_readonly("bias", &Reading::bias)
      .def(
          "__eq__", [](const Reading& a, const Reading& b) { return a == b; }, py::is_operator())
      .def("__hash__", [](const Reading& r) { return hash_of(r.gain, r.shift, r.bias); })
      .def(pickled<Reading>());

  py::class_<Leg>(module, "Leg", kLegDoc)
      .def(py::init([](std::string tensor, int64_t axis, double exponent,
                       std::vector<int64_t> channel_of, double offset,
                       const std::optional<Reading>& through, int64_t head_size, bool stacked) {
             return Leg{
                 std::move(tensor),           axis,      exponent, std::move(channel_of), offset,
                 through.value_or(Reading{}), head_size, stacked};
           }),
           py::arg("tensor"), py::arg("axis") = 0, py::arg("exponent") = 1.0, py::kw_only(),
           py::arg("channel_of") = std::vector<int64_t>{}, py::arg("offset") = 0.0,
           py::arg("through") = py::none(), py::arg("head_size") = 0, py::arg("stacked") = false)
      .def_readonly("tensor", &Leg::tensor)
      .def_readonly("axis", &Leg::axis)
      .def_readonly("exponent", &Leg::exponent)
      .def_readonly("channel_of", &Leg::channel_of)
      .def_readonly("offset", &Leg::offset)
      .def_readonly("through", &Leg::through)
      .def_readonly("head_size", &Leg::head_size)
      .def_readonly("stacked", &Leg::stacked)
      .def(
          "__eq__", [](const Leg& a, const Leg& b) { return a == b; }, py::is_operator())
      .def("__hash__", [](const Leg& leg) { return hash_of(leg.tensor, leg.axis); })
      .def(pickled<Leg>());

  py::class_<Gauge>(module, "Gauge", kGaugeDoc)
      .def(py::init([](std::string name, const std::string& action, std::vector<Leg> legs,
                       int64_t channels, int64_t block, std::string kind, bool fixes_ones) {
             Gauge gauge;
             gauge.name = std::move(name);
             gauge.kind = std::move(kind);
             gauge.action = action_of(action);
             gauge.channels = channels;
             gauge.block = block;
             gauge.fixes_ones = fixes_ones;
             gauge.legs = std::move(legs);
             return gauge;
           }),
           py::arg("name"), py::arg("action"), py::arg("legs"), py::kw_only(), py::arg("channels"),
           py::arg("block") = 1, py::arg("kind") = "custom", py::arg("fixes_ones") = false)
      .def_readonly("name", &Gauge::name)
      .def_readonly("kind", &Gauge::kind)
      .def_property_readonly("action", [](const Gauge& gauge) { return to_string(gauge.action); })
      .def_readonly("channels", &Gauge::channels)
      .def_readonly("block", &Gauge::block)
      .def_readonly("fixes_ones", &Gauge::fixes_ones)
      .def_readonly("legs", &Gauge::legs)
      .def(
          "__eq__", [](const Gauge& a, const Gauge& b) { return a == b; }, py::is_operator())
      .def("__hash__", [](const Gauge& g) { return hash_of(g.name, g.kind, g.channels, g.block); })
      .def(pickled<Gauge>())
      .def("to_json", &written<Gauge>, "Text of the gauge, as in files of symmetries.")
      .def("__repr__", [](const Gauge& gauge) {
        std::ostringstream text;
        text << "<Gauge '" << gauge.name << "': " << gauge.kind << ", " << to_string(gauge.action)
             << " of " << gauge.channels << " channels>";
        return text.str();
      });
}

}  // namespace ddc::python

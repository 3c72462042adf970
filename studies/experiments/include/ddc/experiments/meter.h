#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddc/experiments/settings.h"
#include "ddc/optim/lifted.h"
#include "ddc/testbeds/testbed.h"

// What a run measures beside its loss: `ddc run --meter NAME[:key=value,...]`.

namespace ddc::experiments {

using Values = std::map<std::string, double>;

/// What a meter may look at. It changes nothing.
struct MeterContext {
  const testbeds::Testbed& testbed;
  const Parameters& params;
  const std::vector<Gauge>& gauges;
  const LiftedOptimizer& optimizer;
};

class Meter {
 public:
  virtual ~Meter() = default;
  /// Adds numbers by name at an evaluation, before the step that follows it.
  virtual void measure(Values& /*values*/) {}
  /// Around every step if `follows_all_steps`, else around those that follow an evaluation; then `after_step` may
  /// add to its numbers.
  virtual void before_step() {}
  virtual void after_step(Values* /*values*/) {}
  virtual bool follows_all_steps() const { return false; }
  /// What a run that goes on needs to know of the steps before.
  virtual std::optional<double> state() const { return std::nullopt; }
  /// What there is to say, in words, of its last numbers.
  virtual std::vector<std::string> notes() const { return {}; }
  virtual void resume(double /*state*/) {}
};

struct MeterEntry {
  std::string name;
  std::string description;
  /// Every meter has "every" beside them: evaluations between two measurements.
  Settings settings;
  /// Makes a meter of complete settings. The parameters are where the run starts.
  std::function<std::unique_ptr<Meter>(const Json& settings, const MeterContext& context)> make;
  /// What the names of its numbers begin with.
  std::function<std::string(const Json& settings)> label;
};

const std::vector<MeterEntry>& meter_entries();
const MeterEntry& meter_entry(const std::string& name);

/// The meters of a run that says nothing: drift and turn.
Json default_meters();
/// A list of {"name": ..., settings}, with all settings; throws on what is not known, and on two that would write the
/// same names.
Json complete_meters(const Json& given);
/// "NAME" or "NAME:key=value,key=value".
Json parse_meter(const std::string& text);

/// All meters of a run, and the time that they take.
class Meters {
 public:
  Meters(const Json& meters, const MeterContext& context);

  /// At evaluation number `evaluation` of the run.
  void measure(int64_t evaluation, Values& values);
  void before_step(bool measured);
  void after_step(bool measured, Values* values);

  std::map<std::string, std::string> state() const;
  /// Throws if a meter that needs its state finds none.
  void resume(const std::map<std::string, std::string>& notes);
  std::map<std::string, double> seconds() const;
  std::vector<std::string> notes() const;

 private:
  struct Running {
    std::string label;
    int64_t every;
    std::unique_ptr<Meter> meter;
    double seconds = 0;
    bool due = false;
  };
  std::vector<Running> meters_;
};

}  // namespace ddc::experiments

#include "stacks.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <tuple>

namespace ddc {
namespace {

/// A name as a member of a stack: its number there, and what comes after it.
struct Position {
  int64_t number;
  std::string rest;
};

bool is_number(const std::string& text) {
  return !text.empty() && text.size() < 10 && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isdigit(static_cast<unsigned char>(c)) != 0;
  });
}

/// Where the name has a number, between dots: (prefix, place) for each.
std::vector<std::pair<std::string, Position>> positions_of(const std::string& name) {
  std::vector<std::pair<std::string, Position>> result;
  for (size_t start = 0; start < name.size();) {
    const size_t end = std::min(name.find('.', start), name.size());
    const auto part = name.substr(start, end - start);
    if (is_number(part)) {
      result.push_back({name.substr(0, start), {std::stoll(part), name.substr(end)}});
    }
    start = end + 1;
  }
  return result;
}

std::optional<Position> position_in(const Stack& stack, const std::string& name) {
  if (name.rfind(stack.prefix, 0) != 0) return {};
  const size_t start = stack.prefix.size();
  const size_t end = std::min(name.find('.', start), name.size());
  const auto part = name.substr(start, end - start);
  if (!is_number(part)) return {};
  const int64_t number = std::stoll(part);
  if (!std::binary_search(stack.numbers.begin(), stack.numbers.end(), number)) return {};
  return Position{number, name.substr(end)};
}

bool has(const std::vector<int64_t>& numbers, int64_t number) {
  return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
}

/// Calls `use` with every name of a tensor in the leg.
template <class Leg, class Use>
void each_name(Leg& leg, const Use& use) {
  use(leg.tensor);
  use(leg.through.gain);
  use(leg.through.shift);
  use(leg.through.bias);
}

/// Which numbers of the stack the gauge has tensors of.
std::set<int64_t> numbers_of(const Stack& stack, const Gauge& gauge) {
  std::set<int64_t> result;
  for (const auto& leg : gauge.legs) {
    each_name(leg, [&](const std::string& name) {
      if (const auto place = position_in(stack, name)) result.insert(place->number);
    });
  }
  return result;
}

using Renumber = std::function<int64_t(int64_t number)>;

std::string renamed(const Stack& stack, const std::string& name, const Renumber& renumber) {
  const auto place = position_in(stack, name);
  if (!place) return name;
  return stack.prefix + std::to_string(renumber(place->number)) + place->rest;
}

Leg renamed(const Stack& stack, Leg leg, const Renumber& renumber) {
  each_name(leg, [&](std::string& name) { name = renamed(stack, name, renumber); });
  return leg;
}

Gauge renamed(const Stack& stack, Gauge gauge, const Renumber& renumber) {
  // A gauge is called after one of its tensors, and what it does to it.
  const auto colon = std::min(gauge.name.find(':'), gauge.name.size());
  gauge.name = renamed(stack, gauge.name.substr(0, colon), renumber) + gauge.name.substr(colon);
  for (auto& leg : gauge.legs) leg = renamed(stack, leg, renumber);
  return gauge;
}

/// What tells gauges apart but for their names.
bool same(const Gauge& a, const Gauge& b) {
  return a.kind == b.kind && a.action == b.action && a.channels == b.channels &&
         a.block == b.block && a.fixes_ones == b.fixes_ones && a.legs == b.legs;
}

}  // namespace

namespace {

bool is_outer(const Stack& a, const Stack& b) {
  return std::count(a.prefix.begin(), a.prefix.end(), '.') <
         std::count(b.prefix.begin(), b.prefix.end(), '.');
}

}  // namespace

Stacks::Stacks(const Parameters& params) {
  using Signature = std::set<std::pair<std::string, std::vector<int64_t>>>;
  std::map<std::string, std::map<int64_t, Signature>> modules;
  for (const auto& [name, tensor] : params) {
    for (const auto& [prefix, place] : positions_of(name)) {
      modules[prefix][place.number].insert({place.rest, tensor.sizes().vec()});
    }
  }
  for (const auto& [prefix, members] : modules) {
    std::map<Signature, std::vector<int64_t>> groups;
    for (const auto& [number, signature] : members) groups[signature].push_back(number);
    for (auto& [signature, numbers] : groups) {
      if (numbers.size() < least) continue;
      stacks_.push_back({prefix, numbers, {numbers[0], numbers[1], numbers[2], numbers.back()}});
    }
  }
  std::stable_sort(stacks_.begin(), stacks_.end(), is_outer);
}

Stacks::Stacks(const Parameters& params, const Fingerprint& twin) {
  std::map<std::string, std::set<int64_t>> numbers;
  std::map<std::string, std::set<int64_t>> known;
  for (const auto& [name, tensor] : params) {
    for (const auto& [prefix, place] : positions_of(name)) numbers[prefix].insert(place.number);
  }
  for (const auto& entry : twin.entries) {
    for (const auto& [prefix, place] : positions_of(entry.name)) known[prefix].insert(place.number);
  }
  for (const auto& [prefix, all] : numbers) {
    const auto& few = known[prefix];
    const bool begins = std::equal(few.begin(), few.end(), all.begin(),
                                   std::next(all.begin(), std::min(few.size(), all.size())));
    if (few.size() < 2 || few.size() >= all.size() || !begins) continue;
    Stack stack{prefix, {all.begin(), all.end()}, {few.begin(), few.end()}};
    for (const int64_t number : all) {
      stack.in_twin[number] = few.count(number) > 0 ? number : stack.searched[1];
    }
    // In the middle of the model there is a layer after it.
    if (few.size() > 2) stack.in_twin[*few.rbegin()] = stack.searched[1];
    stack.in_twin[*all.rbegin()] = *few.rbegin();
    stack.searched.back() = *all.rbegin();
    stacks_.push_back(std::move(stack));
  }
  std::stable_sort(stacks_.begin(), stacks_.end(), is_outer);
}

std::string Stacks::in_twin(std::string name) const {
  for (const auto& stack : stacks_) {
    name = renamed(stack, name, [&](int64_t number) { return stack.in_twin.at(number); });
  }
  return name;
}

Gauge Stacks::from_twin(Gauge gauge) const {
  for (const auto& stack : stacks_) {
    const int64_t last = stack.in_twin.at(stack.numbers.back());
    gauge = renamed(stack, std::move(gauge),
                    [&](int64_t number) { return number == last ? stack.numbers.back() : number; });
  }
  return gauge;
}

size_t Stacks::searched() const {
  size_t count = 0;
  for (const auto& stack : stacks_) count += stack.searched.size();
  return count;
}

size_t Stacks::layers() const {
  size_t count = 0;
  for (const auto& stack : stacks_) count += stack.numbers.size();
  return count;
}

Parameters Stacks::searched_of(const Parameters& params) const {
  Parameters result;
  for (const auto& [name, tensor] : params) {
    const bool left_out =
        std::any_of(stacks_.begin(), stacks_.end(), [&, &n = name](const Stack& stack) {
          const auto place = position_in(stack, n);
          return place && !has(stack.searched, place->number);
        });
    if (!left_out) result.add(name, tensor);
  }
  return result;
}

std::vector<Gauge> Stacks::like(const Gauge& gauge) const {
  std::vector<Gauge> result = {gauge};
  for (const auto& stack : stacks_) {
    const auto known = result.size();
    for (size_t k = 0; k < known; ++k) {
      if (numbers_of(stack, result[k]) != std::set<int64_t>{stack.typical()}) continue;
      for (const int64_t number : stack.numbers) {
        if (has(stack.searched, number)) continue;
        result.push_back(renamed(stack, result[k], [&](int64_t) { return number; }));
      }
    }
  }
  return result;
}

Gauge Stacks::on_all_layers(Gauge gauge) const {
  for (const auto& stack : stacks_) {
    const auto numbers = numbers_of(stack, gauge);
    if (!std::all_of(stack.searched.begin(), stack.searched.end(),
                     [&](int64_t number) { return numbers.count(number) > 0; })) {
      continue;
    }
    std::vector<Leg> legs;
    for (const auto& leg : gauge.legs) {
      legs.push_back(leg);
      const auto place = position_in(stack, leg.tensor);
      if (!place || place->number != stack.typical()) continue;
      for (const int64_t number : stack.numbers) {
        if (has(stack.searched, number)) continue;
        legs.push_back(renamed(stack, leg, [&](int64_t) { return number; }));
      }
    }
    gauge.legs = std::move(legs);
  }
  return gauge;
}

std::vector<Proposal> Stacks::by_analogy(const std::vector<Gauge>& found) const {
  std::vector<Proposal> all;
  for (const auto& gauge : found) all.push_back({on_all_layers(gauge), false, all.size()});
  const size_t own = all.size();
  // By name of their first tensor: comparing all with all would take long.
  std::multimap<std::string, size_t> index;
  for (size_t k = 0; k < own; ++k) index.emplace(all[k].gauge.legs.front().tensor, k);
  const auto add = [&](Proposal proposal) {
    const auto [first, last] = index.equal_range(proposal.gauge.legs.front().tensor);
    for (auto it = first; it != last; ++it) {
      auto& known = all[it->second];
      if (!same(known.gauge, proposal.gauge)) continue;
      known.guess = known.guess && proposal.guess;
      return;
    }
    index.emplace(proposal.gauge.legs.front().tensor, all.size());
    all.push_back(std::move(proposal));
  };
  for (const auto& stack : stacks_) {
    const auto position = [&](int64_t number) {
      return std::find(stack.numbers.begin(), stack.numbers.end(), number) - stack.numbers.begin();
    };
    const auto known = all.size();
    for (size_t k = 0; k < known; ++k) {
      const auto numbers = numbers_of(stack, all[k].gauge);
      if (numbers.empty() || numbers.size() > 2) continue;
      const auto low = position(*numbers.begin());
      const auto reach = position(*numbers.rbegin()) - low;
      if (reach > 1) continue;
      const bool guess = all[k].guess || numbers.count(stack.typical()) == 0;
      const auto count = static_cast<std::ptrdiff_t>(stack.numbers.size());
      for (std::ptrdiff_t at = 0; at + reach < count; ++at) {
        const bool was_searched =
            has(stack.searched, stack.numbers[static_cast<size_t>(at)]) &&
            has(stack.searched, stack.numbers[static_cast<size_t>(at + reach)]);
        if (was_searched) continue;
        add({renamed(stack, all[k].gauge,
                     [&](int64_t number) {
                       return stack.numbers[static_cast<size_t>(position(number) - low + at)];
                     }),
             guess, all[k].source});
      }
    }
  }
  return all;
}

}  // namespace ddc

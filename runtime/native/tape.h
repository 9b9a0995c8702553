// Numbers of an update, computed in float64: rates with their schedules, decays, corrections of biases.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "json.h"

namespace gg {

// The variables of tapes by name. What is not known is NaN. A variable stays where it is once it exists.
using Variables = std::map<std::string, double, std::less<>>;

// A list of operations, each on results of earlier ones; the values are some of the results, by name.
class Tape {
 public:
  Tape() = default;

  // Throws an Error where it is not well formed, or reads a variable that does not exist.
  Tape(const Json& told, const Variables& variables) : Tape(told, variables, false) {}

  // Computes all values. Throws an Error with what the tape has to say against it, or where a value is not finite.
  void run();

  size_t size() const { return values_.size(); }
  const std::string& name(size_t i) const { return values_[i].first; }
  double value(size_t i) const { return slots_[values_[i].second]; }

 private:
  using Function = double (*)(const double* operands);
  struct Row {
    Function function = nullptr;
    size_t operands[3] = {};
    const double* variable = nullptr;  // in place of a function
    std::unique_ptr<Tape> repeated;    // of a product: what is multiplied
  };

  Tape(const Json& told, const Variables& variables, bool repeated);
  Row row_of(const Json& told, const Variables& variables, bool repeated);
  void compute();
  double product(const Row& row);

  std::vector<Row> rows_;
  std::vector<double> slots_;  // a row that has nothing to compute is a constant, which stays in its slot
  std::vector<std::pair<std::string, size_t>> values_;
  std::vector<std::string> messages_;
  size_t error_slot_ = 0;
  double turn_ = 0;  // what a repeated tape calls "i"
};

}  // namespace gg

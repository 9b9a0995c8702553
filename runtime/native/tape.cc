#include "tape.h"

#include <cmath>
#include <limits>

#include "error.h"

namespace gg {
namespace {

constexpr int kLongest = 1 << 24;  // turns of a product

struct Operation {
  const char* name;
  size_t operands;
  double (*function)(const double* x);
};

double remainder_of(double a, double b) {  // with the sign of b, as Python's %
  const double m = std::fmod(a, b);
  return m != 0 && (b < 0) != (m < 0) ? m + b : m;
}

double quotient_of(double a, double b) {  // rounded down, as Python's //
  const double m = std::fmod(a, b);
  const double quotient = (a - m) / b - (m != 0 && (b < 0) != (m < 0) ? 1.0 : 0.0);
  const double down = std::floor(quotient);
  return quotient - down > 0.5 ? down + 1.0 : down;
}

constexpr Operation kOperations[] = {
    {"add", 2, [](const double* x) { return x[0] + x[1]; }},
    {"sub", 2, [](const double* x) { return x[0] - x[1]; }},
    {"mul", 2, [](const double* x) { return x[0] * x[1]; }},
    {"div", 2, [](const double* x) { return x[0] / x[1]; }},
    {"pow", 2, [](const double* x) { return std::pow(x[0], x[1]); }},
    {"floordiv", 2, [](const double* x) { return quotient_of(x[0], x[1]); }},
    {"mod", 2, [](const double* x) { return remainder_of(x[0], x[1]); }},
    {"neg", 1, [](const double* x) { return -x[0]; }},
    {"abs", 1, [](const double* x) { return std::fabs(x[0]); }},
    {"sqrt", 1, [](const double* x) { return std::sqrt(x[0]); }},
    {"exp", 1, [](const double* x) { return std::exp(x[0]); }},
    {"log", 1, [](const double* x) { return std::log(x[0]); }},
    {"sin", 1, [](const double* x) { return std::sin(x[0]); }},
    {"cos", 1, [](const double* x) { return std::cos(x[0]); }},
    {"tanh", 1, [](const double* x) { return std::tanh(x[0]); }},
    {"floor", 1, [](const double* x) { return std::floor(x[0]); }},
    {"ceil", 1, [](const double* x) { return std::ceil(x[0]); }},
    {"lt", 2, [](const double* x) { return x[0] < x[1] ? 1.0 : 0.0; }},
    {"le", 2, [](const double* x) { return x[0] <= x[1] ? 1.0 : 0.0; }},
    {"eq", 2, [](const double* x) { return x[0] == x[1] ? 1.0 : 0.0; }},
    {"ne", 2, [](const double* x) { return x[0] != x[1] ? 1.0 : 0.0; }},
    {"gt", 2, [](const double* x) { return x[0] > x[1] ? 1.0 : 0.0; }},
    {"ge", 2, [](const double* x) { return x[0] >= x[1] ? 1.0 : 0.0; }},
    {"known", 1, [](const double* x) { return std::isnan(x[0]) ? 0.0 : 1.0; }},
    {"where", 3, [](const double* x) { return x[0] != 0 ? x[1] : x[2]; }},
};

size_t slot_of(const Json& told, size_t below) {
  const uint64_t slot = told.unsigned_integer();
  if (slot >= below) fail("an operation reads slot ", slot, ", which is computed later or never");
  return slot;
}

}  // namespace

Tape::Tape(const Json& told, const Variables& variables, bool repeated) {
  for (const Json& row : told.at("rows").items()) {
    slots_.push_back(0.0);
    rows_.push_back(row_of(row, variables, repeated));
  }
  for (const auto& [name, slot] : told.at("values").members()) values_.emplace_back(name, slot_of(slot, rows_.size()));
  const Json* error = told.find("error");
  if (error == nullptr || error->is_null()) return;
  error_slot_ = slot_of(*error, rows_.size());
  for (const Json& message : told.at("messages").items()) messages_.push_back(message.at(1).text());
}

Tape::Row Tape::row_of(const Json& told, const Variables& variables, bool repeated) {
  Row row;
  const size_t slot = slots_.size() - 1, count = told.items().size() - 1;
  const std::string& name = told.at(0).text();
  if (name == "const" && count == 1) {
    slots_[slot] = told.at(1).number();
    return row;
  }
  if (name == "var" && count == 1) {
    const auto found = variables.find(told.at(1).text());
    if (repeated && told.at(1).text() == "i") {
      row.variable = &turn_;
    } else if (found != variables.end()) {
      row.variable = &found->second;
    } else {
      fail("there is no variable '", told.at(1).text(), "'");
    }
    return row;
  }
  size_t operands = 3;
  if (name == "product" && count == 4) {
    if (repeated) fail("a product within a product");
    row.repeated.reset(new Tape(told.at(4), variables, true));
    if (row.repeated->size() != 1) fail("a product of ", row.repeated->size(), " values");
  } else {
    for (const Operation& operation : kOperations) {
      if (name == operation.name) row.function = operation.function, operands = operation.operands;
    }
    if (row.function == nullptr || operands != count) fail("no operation '", name, "' of ", count, " operands is known");
  }
  for (size_t i = 0; i < operands; ++i) row.operands[i] = slot_of(told.at(i + 1), slot);
  return row;
}

void Tape::compute() {
  for (size_t i = 0; i < rows_.size(); ++i) {
    const Row& row = rows_[i];
    if (row.variable != nullptr) {
      slots_[i] = *row.variable;
    } else if (row.function != nullptr) {
      const double given[] = {slots_[row.operands[0]], slots_[row.operands[1]], slots_[row.operands[2]]};
      slots_[i] = row.function(given);
    } else if (row.repeated != nullptr) {
      slots_[i] = product(row);
    }
  }
}

double Tape::product(const Row& row) {
  const double first = slots_[row.operands[0]], last = slots_[row.operands[1]], least = slots_[row.operands[2]];
  double made = 1.0;
  for (int turns = 0; first + turns <= last && made > least; ++turns) {
    if (turns == kLongest) return std::numeric_limits<double>::quiet_NaN();
    row.repeated->turn_ = first + turns;
    row.repeated->compute();
    made *= row.repeated->value(0);
  }
  return made;
}

void Tape::run() {
  compute();
  if (!messages_.empty() && slots_[error_slot_] != 0) {
    const double number = slots_[error_slot_] - 1;
    const bool known = number >= 0 && number < static_cast<double>(messages_.size());
    fail(known ? messages_[static_cast<size_t>(number)] : "the numbers of this update cannot be computed");
  }
  for (const auto& [name, slot] : values_) {
    if (!std::isfinite(slots_[slot])) fail(name, " of this update is ", slots_[slot]);
  }
}

}  // namespace gg

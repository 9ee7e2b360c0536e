#include "rows.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <vector>

namespace code2wav {
namespace {

uint64_t memory_for_rows() {
  size_t free = 0, total = 0;
  check(driver().memory(&free, &total), "memory");
  const char* given = std::getenv(kMemoryShare);
  const double share = given != nullptr && *given != '\0' ? std::atof(given) : 1.0;
  return static_cast<uint64_t>(share * static_cast<double>(total)) / kRowsPart;
}

DeviceAddress zeros(uint64_t size) {
  DeviceAddress address = 0;
  check(driver().allocate(&address, size), "memory for " + std::to_string(size) + " bytes of rows");
  check(driver().clear(address, 0, size), "rows");
  return address;
}

}  // namespace

Rows::~Rows() {
  for (auto address : {states_, addresses_, keys_})
    if (address != 0) driver().free(address);
}

void Rows::allocate(uint32_t count, uint32_t public_count, uint64_t state_bytes) {
  const auto fitting = std::min<uint64_t>(count, memory_for_rows() / state_bytes);
  if (fitting <= public_count)
    throw std::runtime_error("code2wav: memory for " + std::to_string(fitting) + " rows, more than " +
                             std::to_string(public_count) + " are required: raise " + kMemoryShare);
  // One more takes writes to no row.
  states_ = zeros((fitting + 1) * state_bytes);
  keys_ = zeros(count * sizeof(int32_t));
  std::vector<int64_t> table(count + 1, 0);
  uint64_t next = states_;
  const auto place = [&](uint64_t row) {
    table[row] = static_cast<int64_t>(next);
    next += state_bytes;
  };
  for (uint64_t row = 0; row < fitting - public_count; ++row) place(row);
  for (uint64_t row = count - public_count; row <= count; ++row) place(row);
  addresses_ = zeros(table.size() * sizeof(int64_t));
  check(driver().upload(addresses_, table.data(), table.size() * sizeof(int64_t)), "addresses");
}

}  // namespace code2wav

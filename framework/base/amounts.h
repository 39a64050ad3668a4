// Amounts as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace convnet {

std::string with_commas(int64_t number);  // "61,100,840"
std::string bytes_text(int64_t bytes);    // "1.5 MiB"; below 1024 "640 B"

}  // namespace convnet

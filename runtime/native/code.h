// Machine code of an artefact: a shared library that is loaded from memory.
#pragma once

#include <dlpack/dlpack.h>
#include <tvm/ffi/c_api.h>

#include <string>
#include <vector>

#include "tensor.h"

namespace gg {

// Bytes as a file that lies in memory alone.
class MemoryFile {
 public:
  explicit MemoryFile(const Tensor& content);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const;

 private:
  int handle_;
};

// Functions of a library, loaded for as long as this lives. Loading runs code: check what is loaded before.
class Code {
 public:
  Code(const Tensor& library, const std::vector<std::string>& symbols);
  ~Code();
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  // Calls one with the address of its arguments' table. Throws an Error where a kernel refuses an argument.
  void operator()(DLTensor* table, size_t function = 0) const;

 private:
  void release();

  MemoryFile file_;  // open for as long as the library is loaded: dlopen takes another one of its path for this one
  TVMFFIObjectHandle module_ = nullptr;
  std::vector<TVMFFIObjectHandle> functions_;
};

// Threads of parallel kernels in this process; 0: one for each physical core that it may use, within its quota, whatever
// the environment says. Has no effect once a kernel has run.
void set_threads(int count);

}  // namespace gg

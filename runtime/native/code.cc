#include "code.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "error.h"

namespace gg {
namespace {

TVMFFIByteArray bytes_of(const std::string& text) { return {text.data(), text.size()}; }

TVMFFIAny any(TVMFFIObjectHandle object, int32_t type) {
  TVMFFIAny made{};
  made.type_index = type;
  made.v_obj = static_cast<TVMFFIObject*>(object);
  return made;
}

TVMFFIAny any(const char* text) {
  TVMFFIAny made{};
  made.type_index = kTVMFFIRawStr;
  made.v_c_str = text;
  return made;
}

TVMFFIAny any(bool value) {
  TVMFFIAny made{};
  made.type_index = kTVMFFIBool;
  made.v_int64 = value;
  return made;
}

[[noreturn]] void raised(const std::string& what) {
  TVMFFIObjectHandle error = nullptr;
  TVMFFIErrorMoveFromRaised(&error);
  std::string why = "an error that says nothing";
  if (error != nullptr) {
    const TVMFFIByteArray message = TVMFFIErrorGetCellPtr(error)->message;
    why.assign(message.data, message.size);
    TVMFFIObjectDecRef(error);
  }
  fail(what, ": ", why);
}

// A function that TVM's runtime has registered, called with these arguments; the result is the caller's.
template <size_t N>
TVMFFIAny call(const std::string& name, TVMFFIAny (&&arguments)[N]) {
  const TVMFFIByteArray bytes = bytes_of(name);
  TVMFFIObjectHandle function = nullptr;
  if (TVMFFIFunctionGetGlobal(&bytes, &function) != 0 || function == nullptr) fail("TVM's runtime has no ", name);
  TVMFFIAny result{};
  const int failed = TVMFFIFunctionCall(function, arguments, N, &result);
  TVMFFIObjectDecRef(function);
  if (failed) raised(name);
  return result;
}

}  // namespace

MemoryFile::MemoryFile(const Tensor& content) : handle_(memfd_create("gluongraph", MFD_CLOEXEC)) {
  const size_t bytes = content.bytes();
  for (size_t at = 0; handle_ >= 0 && at < bytes;) {
    const ssize_t count = write(handle_, content.data + at, bytes - at);
    if (count > 0) {
      at += static_cast<size_t>(count);
    } else if (errno != EINTR) {
      close(std::exchange(handle_, -1));
    }
  }
  if (handle_ < 0) fail("there is no memory for code: ", std::strerror(errno));
}

MemoryFile::~MemoryFile() { close(handle_); }

std::string MemoryFile::path() const { return "/proc/self/fd/" + std::to_string(handle_); }

Code::Code(const Tensor& library, const std::string& symbol) : file_(library) {
  const std::string path = file_.path();
  module_ = call("ffi.Module.load_from_file.so", {any(path.c_str()), any("so")}).v_obj;
  const TVMFFIAny found =
      call("ffi.ModuleGetFunction", {any(module_, kTVMFFIModule), any(symbol.c_str()), any(false)});
  if (found.type_index != kTVMFFIFunction) {
    TVMFFIObjectDecRef(module_);
    fail("the code has no function '", symbol, "'");
  }
  function_ = found.v_obj;
}

Code::~Code() {
  TVMFFIObjectDecRef(function_);
  TVMFFIObjectDecRef(module_);
}

void Code::operator()(DLTensor* table) const {
  TVMFFIAny argument{}, result{};
  argument.type_index = kTVMFFIInt;
  argument.v_int64 = reinterpret_cast<int64_t>(table);
  if (TVMFFIFunctionCall(function_, &argument, 1, &result) != 0) raised("a kernel has failed");
}

void set_threads(int count) {
  if (count > 0) {
    setenv("TVM_NUM_THREADS", std::to_string(count).c_str(), 1);
  } else {
    unsetenv("TVM_NUM_THREADS");
  }
}

}  // namespace gg

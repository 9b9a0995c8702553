#include "code.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>
#include <utility>

#include "cores.h"
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
TVMFFIAny call(const std::string& name, const TVMFFIAny* arguments, size_t count) {
  const TVMFFIByteArray bytes = bytes_of(name);
  TVMFFIObjectHandle function = nullptr;
  if (TVMFFIFunctionGetGlobal(&bytes, &function) != 0 || function == nullptr) fail("TVM's runtime has no ", name);
  TVMFFIAny result{};
  const int failed = TVMFFIFunctionCall(function, const_cast<TVMFFIAny*>(arguments), static_cast<int32_t>(count), &result);
  TVMFFIObjectDecRef(function);
  if (failed) raised(name);
  return result;
}

template <size_t N>
TVMFFIAny call(const std::string& name, const TVMFFIAny (&arguments)[N]) {
  return call(name, arguments, N);
}

std::set<int> tasks() {
  std::set<int> found;
  std::error_code none;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/task", none)) {
    found.insert(std::stoi(each.path().filename().string()));
  }
  return found;
}

// Starts the workers of the calling thread, each on one of these cores; its own is the first that is left. TVM would bind
// them to the machine's first cores, whatever the affinity of the process, and the calling thread with them.
void bind(const std::vector<int>& cores) {
  const std::set<int> before = tasks();
  call("runtime.NumThreads", nullptr, 0);
  auto core = cores.begin() + 1;
  for (const int task : tasks()) {
    if (before.count(task) || core == cores.end()) continue;
    const size_t count = static_cast<size_t>(*core) + 1, bytes = CPU_ALLOC_SIZE(count);
    cpu_set_t* mask = CPU_ALLOC(count);
    if (mask == nullptr) return;
    CPU_ZERO_S(bytes, mask);
    CPU_SET_S(static_cast<size_t>(*core++), bytes, mask);
    sched_setaffinity(task, bytes, mask);  // fails where the core has been taken from us: then it goes where it likes
    CPU_FREE(mask);
  }
}

std::once_flag configured;
int asked_for = 0;  // threads; 0: as the environment and the cores say

// Before the first kernel of the process: how many threads there are, and where. They are bound where this process has a
// thread for each of its cores: of fewer it could not be told which ones others leave free.
void configure() {
  const std::vector<int> mine = cores(affinity());
  const int count = asked_for > 0 ? asked_for : threads(mine, quota());
  const bool told = std::getenv("TVM_BIND_THREADS") != nullptr;
  setenv("TVM_BIND_THREADS", "0", 0);
  setenv("TVM_NUM_THREADS", std::to_string(count).c_str(), 1);
  if (!told && count > 1 && static_cast<size_t>(count) == mine.size()) bind(mine);
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

Code::Code(const Tensor& library, const std::vector<std::string>& symbols) : file_(library) {
  const std::string path = file_.path();
  module_ = call("ffi.Module.load_from_file.so", {any(path.c_str()), any("so")}).v_obj;
  for (const std::string& symbol : symbols) {
    const TVMFFIAny found =
        call("ffi.ModuleGetFunction", {any(module_, kTVMFFIModule), any(symbol.c_str()), any(false)});
    if (found.type_index != kTVMFFIFunction) {
      release();
      fail("the code has no function '", symbol, "'");
    }
    functions_.push_back(found.v_obj);
  }
}

Code::~Code() { release(); }

void Code::release() {
  for (TVMFFIObjectHandle function : functions_) TVMFFIObjectDecRef(function);
  TVMFFIObjectDecRef(module_);
}

void Code::operator()(DLTensor* table, size_t function) const {
  std::call_once(configured, configure);
  TVMFFIAny argument{}, result{};
  argument.type_index = kTVMFFIInt;
  argument.v_int64 = reinterpret_cast<int64_t>(table);
  if (TVMFFIFunctionCall(functions_[function], &argument, 1, &result) != 0) raised("a kernel has failed");
}

void set_threads(int count) {
  asked_for = count > 0 ? count : within(cores(affinity()), quota());
}

}  // namespace gg

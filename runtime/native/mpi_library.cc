#include "mpi_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "error.h"

namespace gg {
namespace {

constexpr const char *kNamed = "GG_MPI_LIBRARY", *kOpenMpi = "libmpi.so.40";

// Names of the library, that of the launcher's MPI first. Debian calls MPICH's libmpich.
std::vector<std::string> names() {
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr || std::getenv("PMIX_RANK") != nullptr) {
    return {kOpenMpi, "libmpi.so.12", "libmpich.so.12"};
  }
  return {"libmpi.so.12", "libmpich.so.12", kOpenMpi};
}

// The folder of libraries beside a folder of programs, which ends in /bin; "" for another.
std::string libraries_beside(const std::string& programs) {
  constexpr size_t kLength = 4;
  const size_t start = programs.size() < kLength ? 0 : programs.size() - kLength;
  return programs.compare(start, kLength, "/bin") == 0 ? programs.substr(0, start) + "/lib" : "";
}

// The folder of the program that has started this process: on each host, a part of the launcher.
std::string folder_of_parent() {
  char path[PATH_MAX];
  const ssize_t length = readlink(("/proc/" + std::to_string(getppid()) + "/exe").c_str(), path, sizeof path);
  const std::string found(path, length > 0 ? static_cast<size_t>(length) : 0);
  return found.substr(0, found.find_last_of('/') == std::string::npos ? 0 : found.find_last_of('/'));
}

// Where the library may be: where the loader looks (""), at the launcher's prefix, beside a folder of PATH.
std::vector<std::string> folders() {
  std::vector<std::string> found{""};
  const auto add = [&](const std::string& folder) {
    if (!folder.empty()) found.push_back(folder + "/");
  };
  if (const char* prefix = std::getenv("OPAL_PREFIX")) add(std::string(prefix) + "/lib");
  add(libraries_beside(folder_of_parent()));
  const char* path = std::getenv("PATH");
  std::istringstream programs(path == nullptr ? "" : path);
  for (std::string folder; std::getline(programs, folder, ':');) add(libraries_beside(folder));
  return found;
}

void* library() {
  std::string why;
  const auto opened = [&](const std::string& path) {
    void* found = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);  // global: Open MPI's plugins look for it
    if (const char* error = found == nullptr ? dlerror() : nullptr; error != nullptr && why.empty()) why = error;
    return found;
  };
  if (const char* named = std::getenv(kNamed)) {
    if (void* found = opened(named)) return found;
  } else {
    for (const std::string& name : names()) {
      for (const std::string& folder : folders()) {
        if (void* found = opened(folder + name)) return found;
      }
    }
  }
  fail("this process is one of several ranks, and the library of MPI cannot be loaded: ", why, "; ", kNamed,
       "=/path/to/libmpi.so names it");
}

template <class Symbol>
void look_up(void* from, const char* name, Symbol& symbol) {
  void* found = dlsym(from, name);
  if (found == nullptr) fail("the library of MPI has no ", name);
  symbol = reinterpret_cast<Symbol>(found);
}

// What MPI itself adds, as runtime/communicator/mpi_reductions.py has it: Open MPI's object, MPICH's number.
struct Number {
  const char *dtype, *open_mpi;
  uintptr_t mpich;
};
constexpr Number kNumbers[] = {
    {"f32", "ompi_mpi_float", 0x4c00040a},   {"f64", "ompi_mpi_double", 0x4c00080b},
    {"i8", "ompi_mpi_int8_t", 0x4c000137},   {"u8", "ompi_mpi_uint8_t", 0x4c00013b},
    {"i32", "ompi_mpi_int32_t", 0x4c000439}, {"u32", "ompi_mpi_uint32_t", 0x4c00043d},
    {"i64", "ompi_mpi_int64_t", 0x4c00083a}, {"u64", "ompi_mpi_uint64_t", 0x4c00083e},
};

void open_mpi_handles(void* from, Mpi& mpi) {
  look_up(from, "ompi_mpi_comm_world", mpi.world);
  for (const Number& row : kNumbers) look_up(from, row.open_mpi, mpi.numbers[row.dtype]);
  look_up(from, "ompi_mpi_byte", mpi.byte);
  look_up(from, "ompi_mpi_op_sum", mpi.sum);
  look_up(from, "ompi_mpi_op_max", mpi.max);
  mpi.in_place = reinterpret_cast<void*>(1);
  mpi.no_status = nullptr;
}

void mpich_handles(Mpi& mpi) {
  const auto handle = [](uintptr_t value) { return reinterpret_cast<Mpi::Handle>(value); };
  mpi.world = handle(0x44000000);
  for (const Number& row : kNumbers) mpi.numbers[row.dtype] = handle(row.mpich);
  mpi.byte = handle(0x4c00010d);
  mpi.sum = handle(0x58000003);
  mpi.max = handle(0x58000001);
  mpi.in_place = reinterpret_cast<void*>(intptr_t{-1});
  mpi.no_status = reinterpret_cast<void*>(1);
}

// The first line of what the library says of itself.
void read_version(void* from, Mpi& mpi) {
  int (*version)(char*, int*);
  look_up(from, "MPI_Get_library_version", version);
  int length = 0;
  version(mpi.version, &length);
  mpi.version[std::strcspn(mpi.version, "\n,")] = 0;
}

bool keeps_to_mpich(const char* version) {
  for (const char* name : {"MPICH", "Intel(R) MPI", "MVAPICH"}) {
    if (std::strstr(version, name) != nullptr) return true;
  }
  return false;
}

}  // namespace

void load_mpi(Mpi& mpi) {
  void* from = library();
  look_up(from, "MPI_Init_thread", mpi.init);
  look_up(from, "MPI_Finalize", mpi.finalize);
  look_up(from, "MPI_Initialized", mpi.initialized);
  look_up(from, "MPI_Abort", mpi.abort);
  look_up(from, "MPI_Comm_rank", mpi.rank);
  look_up(from, "MPI_Comm_size", mpi.size);
  look_up(from, "MPI_Allreduce", mpi.allreduce);
  look_up(from, "MPI_Allgatherv", mpi.allgatherv);
  look_up(from, "MPI_Bcast", mpi.broadcast);
  look_up(from, "MPI_Sendrecv", mpi.sendrecv);
  read_version(from, mpi);
  if (dlsym(from, "ompi_mpi_comm_world") != nullptr) return open_mpi_handles(from, mpi);
  if (!keeps_to_mpich(mpi.version)) fail(mpi.version, " is neither Open MPI nor has it MPICH's binary interface");
  mpich_handles(mpi);
}

void check_mpi(int code, const char* what) {
  if (code != 0) fail("MPI's error ", code, " in ", what);
}

}  // namespace gg

// What is used of MPI, found in its library at run time: nothing of MPI is needed to build this.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>

namespace gg {

// Open MPI's handles are addresses of objects that its library exports. MPICH's, and those of Intel MPI and others that
// keep to its binary interface, are 32-bit integers: of a register or a place on the stack that holds a pointer they read
// the lower half.
struct Mpi {
  using Handle = void*;

  int (*init)(int*, char***, int, int*);
  int (*finalize)();
  int (*initialized)(int*);
  int (*abort)(Handle, int);
  int (*rank)(Handle, int*);
  int (*size)(Handle, int*);
  int (*allreduce)(const void*, void*, int, Handle, Handle, Handle);
  int (*allgatherv)(const void*, int, Handle, void*, const int*, const int*, Handle, Handle);
  int (*broadcast)(void*, int, Handle, int, Handle);
  int (*sendrecv)(const void*, int, Handle, int, int, void*, int, Handle, int, int, Handle, void*);
  Handle world, sum, max, byte;
  std::map<std::string_view, Handle> numbers;  // by the name of a dtype: what MPI itself adds
  void *in_place, *no_status;
  char version[8192];  // one line that names the library
};

// Loads the library of the launcher. Throws an Error where there is none, or it is of another kind.
void load_mpi(Mpi& mpi);

// Throws an Error for another code than that of success.
void check_mpi(int code, const char* what);

}  // namespace gg

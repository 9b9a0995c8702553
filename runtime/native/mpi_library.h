// What is used of MPI, found in its library at run time: nothing of MPI is needed to build this.
#pragma once

#include <cstdint>

namespace gg {

// Open MPI's handles are addresses of objects that its library exports. MPICH's, and those of Intel MPI and others that
// keep to its binary interface, are 32-bit integers: of a register that holds a pointer they read the lower half.
struct Mpi {
  using Handle = void*;

  int (*init)(int*, char***, int, int*);
  int (*finalize)();
  int (*initialized)(int*);
  int (*abort)(Handle, int);
  int (*rank)(Handle, int*);
  int (*size)(Handle, int*);
  int (*allreduce)(const void*, void*, int, Handle, Handle, Handle);
  Handle world, float32, float64, int64, sum, max;
  void* in_place;
  char version[8192];  // one line that names the library
};

// Loads the library of the launcher. Throws an Error where there is none, or it is of another kind.
void load_mpi(Mpi& mpi);

}  // namespace gg

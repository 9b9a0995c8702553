// A fake of libcuda.so.1: its "machine code" is a shared library made with gpu.h, in which threads are fibers, and a
// launch is a call. What CUDA refuses is refused: grids and blocks beyond its limits, code that is no ELF file.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OK = 0, INVALID_VALUE = 1, INVALID_IMAGE = 200, NOT_FOUND = 500 };
typedef struct {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
  void *stream, *attributes;
  unsigned count;
} Config;

int fake_order;           // 0: forwards; 1: threads backwards; 2: threads and blocks backwards
int fake_refuses;         // whether each launch is refused
long fake_launches;       // kernels started
long fake_other_streams;  // those of them on another stream than the one that copies use

int cuInit(unsigned flags) { return OK; }
int cuDeviceGetCount(int *count) { return *count = 1, OK; }
int cuDeviceGet(int *device, int number) { return *device = number, number ? INVALID_VALUE : OK; }
int cuDeviceGetName(char *name, int size, int device) { return strncpy(name, "fake", size), OK; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : 1024;  // compute capability 9.0
  return OK;
}
int cuGetErrorName(int error, const char **name) {
  return *name = error == INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : "CUDA_ERROR_UNKNOWN", OK;
}
int cuGetErrorString(int error, const char **text) { return cuGetErrorName(error, text); }
int cuFuncSetAttribute(void *function, int attribute, int value) { return OK; }
int cuTensorMapEncodeTiled(void) { return INVALID_VALUE; }

int cuModuleLoadData(void **module, const void *image) {
  const Elf64_Ehdr *header = image;
  if (memcmp(header, ELFMAG, SELFMAG)) return INVALID_IMAGE;
  size_t size = header->e_shoff + (size_t)header->e_shnum * header->e_shentsize;
  char path[64];
  int file = memfd_create("kernels", 0);
  if (write(file, image, size) != (ssize_t)size) return INVALID_IMAGE;
  snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!*module) fprintf(stderr, "%s\n", dlerror());
  return *module ? OK : INVALID_IMAGE;
}
int cuModuleUnload(void *module) { return OK; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
  char symbol[512];
  snprintf(symbol, sizeof symbol, "run_%s", name);
  return (*function = dlsym(module, symbol)) ? OK : NOT_FOUND;
}

static int start(const Config *c, void *function, void **arguments) {
  if (fake_refuses || !c->grid_x || !c->grid_y || !c->grid_z || c->grid_x > 2147483647u || c->grid_y > 65535 || c->grid_z > 65535 ||
      !c->block_x || !c->block_y || !c->block_z || c->block_z > 64 ||
      (unsigned long)c->block_x * c->block_y * c->block_z > 1024 || c->shared > 232448)
    return INVALID_VALUE;
  fake_launches++;
  fake_other_streams += c->stream != 0;
  int grid[7] = {c->grid_x, c->grid_y, c->grid_z, c->block_x, c->block_y, c->block_z, fake_order};
  ((void (*)(void **, int *))function)(arguments, grid);
  return OK;
}
int cuLaunchKernelEx(const Config *c, void *function, void **arguments, void **extra) {
  return start(c, function, arguments);
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **arguments, void **extra) {
  Config c = {gx, gy, gz, bx, by, bz, shared, stream, 0, 0};
  return start(&c, function, arguments);
}
int cuLaunchCooperativeKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                              unsigned bz, unsigned shared, void *stream, void **arguments) {
  return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, arguments, 0);
}

// A fake of libcudart.so.13: a device's memory is the host's, each allocation between two pages that may not be touched.
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { OK = 0, OUT_OF_MEMORY = 2, PAGE = 4096 };
typedef void *Stream;
typedef struct Block { char *start, *base; size_t size; struct Block *next; } Block;
static Block *blocks;

int cudaMalloc(void **place, size_t size) {
  size_t body = (size + PAGE - 1) / PAGE * PAGE;
  if (body > (80ull << 30)) return OUT_OF_MEMORY;
  char *base = mmap(0, body + 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return OUT_OF_MEMORY;
  mprotect(base, PAGE, PROT_NONE);
  mprotect(base + PAGE + body, PAGE, PROT_NONE);
  if (body <= 1 << 20) memset(base + PAGE, 0x7f, body);
  Block *block = malloc(sizeof *block);
  *block = (Block){base + PAGE, base, body + 2 * PAGE, blocks};
  blocks = block;
  return *place = block->start, OK;
}
int cudaFree(void *place) {
  for (Block **at = &blocks; *at; at = &(*at)->next)
    if ((*at)->start == place) {
      Block *found = *at;
      *at = found->next;
      munmap(found->base, found->size);
      free(found);
      break;
    }
  return OK;
}
int cudaMallocHost(void **place, size_t size) { return (*place = malloc(size)) ? OK : OUT_OF_MEMORY; }
int cudaFreeHost(void *place) { return free(place), OK; }
int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, Stream s) { return memcpy(to, from, size), OK; }
int cudaMemcpyPeerAsync(void *to, int there, const void *from, int here, size_t size, Stream s) {
  return memcpy(to, from, size), OK;
}
int cudaGetDevice(int *device) { return *device = 0, OK; }
int cudaSetDevice(int device) { return device != 0; }
int cudaGetDeviceCount(int *count) { return *count = 1, OK; }
int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 10 ? 32 : 1024;
  return OK;
}
int cudaGetDeviceProperties(void *properties, int device) { return strcpy(properties, "fake"), OK; }
const char *cudaGetErrorName(int error) { return error == OUT_OF_MEMORY ? "cudaErrorMemoryAllocation" : "fake"; }
const char *cudaGetErrorString(int error) { return error == OUT_OF_MEMORY ? "out of memory" : "fake"; }
int cudaGetLastError(void) { return OK; }
int cudaPeekAtLastError(void) { return OK; }
int cudaMemGetInfo(size_t *free, size_t *total) { return *free = *total = 80ull << 30, OK; }
int cudaEventCreate(Stream *e) { return *e = (Stream)1, OK; }
int cudaEventDestroy(Stream e) { return OK; }
int cudaEventElapsedTime(float *ms, Stream a, Stream b) { return *ms = 1, OK; }
int cudaEventRecord(Stream e, Stream s) { return OK; }
int cudaEventSynchronize(Stream e) { return OK; }
int cudaStreamCreate(Stream *s) { return *s = (Stream)2, OK; }
int cudaStreamCreateWithFlags(Stream *s, unsigned flags) { return *s = (Stream)2, OK; }
int cudaStreamDestroy(Stream s) { return OK; }
int cudaStreamSynchronize(Stream s) { return OK; }
int cudaStreamWaitEvent(Stream s, Stream e, unsigned flags) { return OK; }
int cudaStreamBeginCapture(Stream s, int mode) { return OK; }
int cudaStreamEndCapture(Stream s, Stream *graph) { return OK; }
int cudaGraphInstantiate(Stream *e, Stream g, unsigned long long flags) { return OK; }
int cudaGraphLaunch(Stream e, Stream s) { return OK; }
int cudaGraphDestroy(Stream g) { return OK; }
int cudaGraphExecDestroy(Stream e) { return OK; }

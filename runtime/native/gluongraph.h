/* Training without Python: the artefacts that gluongraph exports, for C and for whatever calls C.

     gg_training *training = gg_load("digits.gga");
     gg_array batch[2] = {{"f32", 4, x_shape, x}, {"i32", 1, y_shape, y}};
     while (...) if (gg_step(training, batch, 2)) fail(gg_error(training)); else print(gg_mean(training, 0));
     gg_save(training, "run");
     gg_free(training);

   Functions that return int give 0 where all went well. Otherwise gg_error says in one sentence why not, and everything
   is as it was before. A training is used by one thread at a time; two trainings by two threads at once. */
#ifndef GLUONGRAPH_H
#define GLUONGRAPH_H

#include <stdint.h>

#if defined(_WIN32)
#error "gluongraph's runner needs Linux"
#endif
#define GG_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gg_training gg_training;

/* An array without gaps, the last axis dense. dtype is one of f32 f64 f16 bf16 i8 i32 i64 u8 u32 u64 bool. */
typedef struct {
  const char *dtype;
  int rank;
  const int64_t *shape;
  void *data;
} gg_array;

/* The training that an artefact holds, as it was exported; NULL where it is refused, and gg_error(NULL) says why. Nothing
   of it is executed before all of it has been checked. It is a program: load what you trust. */
GG_API gg_training *gg_load(const char *path);

/* The same of an artefact that one of the keys in a file has signed, lines as `gluongraph key show` prints them. Nothing
   of another is executed, and of its contents nothing is read but digests. */
GG_API gg_training *gg_load_signed(const char *path, const char *keys);
GG_API void gg_free(gg_training *training);

/* Why the last call on this training failed, or the last load of this thread; "" if it did not. */
GG_API const char *gg_error(const gg_training *training);

/* Threads of parallel kernels, in this process; 0: one for each physical core that it may use, by its affinity and the
   quota of its control group. Without this call GG_THREADS, TVM_NUM_THREADS or OMP_NUM_THREADS may say, else it is as with
   0. Where there are as many threads as cores, those that TVM starts are bound to one each, unless TVM_BIND_THREADS is set.
   To be said before the first step. Results do not depend on it. */
GG_API void gg_set_threads(int count);

/* One update by a batch: arrays in the order and of the types that gg_batch tells. */
GG_API int gg_step(gg_training *training, const gg_array *batch, int arrays);

/* One update by several batches: gradients are added up, and applied divided by the number of samples in them. */
GG_API int gg_accumulate(gg_training *training, const gg_array *batch, int arrays);
GG_API int gg_apply(gg_training *training);

/* Loss, or output of the net, in prediction mode. Nothing changes. */
GG_API int gg_evaluate(gg_training *training, const gg_array *batch, int arrays);
GG_API int gg_predict(gg_training *training, const gg_array *inputs, int arrays);

/* What the last of these calls gave: losses and whatever follows them, or outputs. 1 where there are no more. The memory
   is the training's, and is overwritten by the next call. */
GG_API int gg_result(const gg_training *training, int index, gg_array *result);
GG_API double gg_mean(const gg_training *training, int index); /* of a result of floats, else NaN; the first is the loss */

/* A checkpoint in a run's folder, from which Python goes on as well; where it lies, until the next call. NULL: failed.
   Several ranks save together: all call this, and the first one writes, running statistics of each rank among it. */
GG_API const char *gg_save(gg_training *training, const char *run);

/* Goes on from a checkpoint, or from the newest whole one of a run's folder. gg_warning tells of damaged newer ones. */
GG_API int gg_restore(gg_training *training, const char *folder);
GG_API const char *gg_warning(const gg_training *training);

/* JSON of your own, an object, that checkpoints carry. */
GG_API int gg_set_extra(gg_training *training, const char *json);
GG_API const char *gg_extra(gg_training *training); /* until the next call */

/* The rate of the last update, without multipliers; NaN where it is unknown. Setting it fails where a schedule decides. */
GG_API double gg_learning_rate(gg_training *training);
GG_API int gg_set_learning_rate(gg_training *training, double rate);

/* An artefact that several ranks have exported trains on the processes that mpiexec starts, as many as there are: all load
   it and call the same functions in the same order, each with its own samples. The number of this
   process, from 0, and how many there are; 0 of 1 of other artefacts and without mpiexec. */
GG_API int gg_rank(const gg_training *training);
GG_API int gg_rank_count(const gg_training *training);

/* Waits for all ranks, and fails on all where they do not give the same text. */
GG_API int gg_agree(gg_training *training, const char *text);
GG_API int gg_mean_over_ranks(gg_training *training, double *value); /* replaces it */

/* For a program that ends by an error: ends the other ranks, which would wait for this one. Nothing happens where there are
   none, or where the last update has failed on all of them. */
GG_API void gg_abort(void);

GG_API int64_t gg_updates(const gg_training *training);   /* that have been made */
GG_API int64_t gg_skipped(const gg_training *training);   /* batches left out, their gradients not being finite */
GG_API double gg_grad_norm(const gg_training *training);  /* before clipping; NaN where it is not computed */

/* What the artefact holds. An entry is a mode ("step", "evaluate", "predict", "accumulate", ...) for one set of types.
   1 where there are no more; the memory is the training's. */
GG_API int gg_entry(const gg_training *training, int entry, const char **mode, int *arrays);
GG_API int gg_is_collective(const gg_training *training, int entry); /* do all ranks have to call it together? */
GG_API int gg_batch(const gg_training *training, int entry, int array, gg_array *type); /* data is NULL */
/* The values of parameters; of those that ranks keep in parts (strategy="fsdp") this rank's part alone is as it is now. */
GG_API int gg_parameter(const gg_training *training, int index, const char **name, gg_array *value);

#ifdef __cplusplus
}
#endif

#endif

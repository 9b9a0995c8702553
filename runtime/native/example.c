/* Trains an artefact from C on samples that it makes up: as many steps as asked for, and a checkpoint.

     gcc -std=c11 example.c -Idigits/include -Ldigits/lib -lgluongraph -Wl,-rpath,digits/lib -o example
     ./example digits/digits.gga 100 run */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gluongraph.h"

static int refuse(const gg_training *training) {
  fprintf(stderr, "example: %s\n", gg_error(training));
  gg_free((gg_training *)training);
  return 2;
}

/* Fills an array of the batch with numbers; labels stay 0. */
static void fill(gg_array *array) {
  size_t count = 1;
  for (int i = 0; i < array->rank; ++i) count *= (size_t)array->shape[i];
  array->data = calloc(count, 8);
  if (array->data != NULL && strcmp(array->dtype, "f32") == 0) {
    for (size_t i = 0; i < count; ++i) ((float *)array->data)[i] = (float)(i % 7) / 7.0f;
  }
}

int main(int count, char **words) {
  if (count != 4) return fprintf(stderr, "example ARTEFACT STEPS FOLDER\n"), 2;
  gg_set_threads(1);
  gg_training *training = gg_load(words[1]);
  if (training == NULL) return refuse(NULL);

  gg_array batch[8];
  const char *mode = "";
  int arrays = 0;
  for (int entry = 0; strcmp(mode, "step") != 0; ++entry) { /* the first entry that trains */
    if (gg_entry(training, entry, &mode, &arrays) || arrays > 8) return 2;
    for (int i = 0; i < arrays; ++i) gg_batch(training, entry, i, &batch[i]);
  }
  for (int i = 0; i < arrays; ++i) fill(&batch[i]);

  for (int step = 0; step < atoi(words[2]); ++step) {
    if (gg_step(training, batch, arrays)) return refuse(training);
  }
  const char *place = gg_save(training, words[3]);
  if (place == NULL) return refuse(training);
  printf("%lld updates, loss %.9g, saved in %s\n", (long long)gg_updates(training), gg_mean(training, 0), place);
  for (int i = 0; i < arrays; ++i) free(batch[i].data);
  gg_free(training);
  return 0;
}

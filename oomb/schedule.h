/* schedule.h: the learning rate of a step. (The order of chunks and passes is chunks.h.) */
#ifndef OOMB_SCHEDULE_H
#define OOMB_SCHEDULE_H

#include <math.h>

typedef enum { SCHEDULE_COSINE, SCHEDULE_CONSTANT } ScheduleKind;

/* step counts from 1. Linear from lr / warmup at step 1 to lr at step `warmup`; then constant, or
   half a cosine down to lr / 10 at the last step. */
static inline double schedule_lr(ScheduleKind kind, double lr, int step, int warmup, int steps) {
    if (step <= warmup) return lr * step / warmup;
    if (kind == SCHEDULE_CONSTANT || steps <= warmup) return lr;
    double progress = (double)(step - warmup) / (steps - warmup);
    if (progress > 1) progress = 1;
    return lr * (0.1 + 0.45 * (1.0 + cos(3.14159265358979323846 * progress)));
}

#endif

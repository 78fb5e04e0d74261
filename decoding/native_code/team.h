/* The threads that share a task. */

#pragma once

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>

/* A team of threads that yield the core while they wait. OpenMP's spin on it and then sleep: where another process
   wants a core, each of the hundreds of waits in a forward can cost a time slice of milliseconds. */
typedef void (*Task)(const void *argument, int64_t me, int64_t team);

enum { SPINS = 4096, YIELDS = 2048, MOST_THREADS = 256 };

static struct {
    pthread_mutex_t busy, lock; /* one task at a time; of `wake` */
    pthread_cond_t wake;
    atomic_uint round, running;
    unsigned born[MOST_THREADS]; /* the round before a member's first */
    int64_t members, team;       /* beside the caller; with it, in this round */
    Task task;
    const void *argument;
} pool;

static void reset_pool(void) {
    pthread_mutex_init(&pool.busy, 0);
    pthread_mutex_init(&pool.lock, 0);
    pthread_cond_init(&pool.wake, 0);
    pool.members = 0;
}

__attribute__((constructor)) static void prepare(void) {
    reset_pool();
    pthread_atfork(0, 0, reset_pool); /* the child has none of the threads */
}

/* Whether *value has come to differ from `old` before patience, if any, was over. */
static int changed(atomic_uint *value, unsigned old, int patience) {
    for (int waits = 0; atomic_load_explicit(value, memory_order_acquire) == old; waits++) {
        if (patience && waits > patience) return 0;
        if (waits > SPINS) sched_yield();
        if (waits > 1 << 30) waits = SPINS;
    }
    return 1;
}

static void *member(void *number) {
    int64_t me = (int64_t)number;
    for (unsigned seen = pool.born[me];; seen++) {
        if (!changed(&pool.round, seen, SPINS + YIELDS)) {
            pthread_mutex_lock(&pool.lock);
            while (atomic_load(&pool.round) == seen) pthread_cond_wait(&pool.wake, &pool.lock);
            pthread_mutex_unlock(&pool.lock);
        }
        if (me < pool.team) pool.task(pool.argument, me, pool.team);
        atomic_fetch_sub(&pool.running, 1); /* those outside the team too: nobody may miss a round */
    }
    return 0;
}

/* Have `threads` threads, the caller among them, do a task; fewer where they cannot be had. */
static void share(Task task, const void *argument, int64_t threads) {
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    if (threads <= 1) {
        task(argument, 0, 1);
        return;
    }
    pthread_mutex_lock(&pool.busy);
    while (pool.members < threads - 1) {
        pthread_t thread;
        int64_t number = pool.members + 1;
        pool.born[number] = atomic_load(&pool.round);
        if (pthread_create(&thread, 0, member, (void *)number)) break;
        pthread_detach(thread);
        pool.members = number;
    }
    pool.task = task;
    pool.argument = argument;
    pool.team = threads <= pool.members ? threads : pool.members + 1;
    atomic_store(&pool.running, (unsigned)pool.members);
    pthread_mutex_lock(&pool.lock);
    atomic_fetch_add(&pool.round, 1);
    pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.lock);
    task(argument, 0, pool.team);
    for (unsigned left; (left = atomic_load(&pool.running)) > 0;) changed(&pool.running, left, 0);
    pthread_mutex_unlock(&pool.busy);
}

typedef struct {
    atomic_uint arrived, round;
} Barrier;

static void wait_for_all(Barrier *barrier, int64_t team) {
    unsigned round = atomic_load(&barrier->round);
    if (atomic_fetch_add(&barrier->arrived, 1) == team - 1) {
        atomic_store(&barrier->arrived, 0);
        atomic_store(&barrier->round, round + 1);
    } else {
        changed(&barrier->round, round, 0);
    }
}

/* This thread's part of 0 .. n - 1. What it does for one of them does not depend on who does it. */
#define SHARE(i, n) for (int64_t i = (n) * me / team, end_##i = (n) * (me + 1) / team; i < end_##i; i++)

/* CHECK(call): ends the program with the library's message if a call fails. */
#ifndef CHECK_H
#define CHECK_H

#include <memferry.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(call)                                                                              \
    do {                                                                                         \
        mf_status check_status = (call);                                                         \
        if (check_status != MF_OK) {                                                             \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, mf_status_name((int)check_status), \
                    mf_error_message());                                                         \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

/* Also in builds with NDEBUG. */
#define ENSURE(condition)                                                     \
    do {                                                                      \
        if (!(condition)) {                                                   \
            fprintf(stderr, "%s:%d: not %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                          \
        }                                                                     \
    } while (0)

#endif

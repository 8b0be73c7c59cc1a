/* What the rows of a param.def become: pointers to comm_backend_param, for an array of them. Compound literals at file
 * scope live as long as the program. Include the param.def in the array's initializer, at file scope. */
#ifndef COMM_BASE_PARAM_ROWS_H
#define COMM_BASE_PARAM_ROWS_H

#include <comm/backend.h>

#define PARAM_ROW(...) &(const comm_backend_param){ sizeof(comm_backend_param), __VA_ARGS__ },
#define PARAM_INT(name, initial, minimum, maximum, help) \
    PARAM_ROW(COMM_PARAM_INT, name, #initial, minimum, maximum, help)
#define PARAM_BYTES(name, initial, minimum, maximum, help) \
    PARAM_ROW(COMM_PARAM_BYTES, name, #initial, minimum, maximum, help)
#define PARAM_TEXT(name, initial, help) PARAM_ROW(COMM_PARAM_TEXT, name, initial, 0, 0, help)
#define PARAM_AGREED_INT(name, initial, minimum, maximum, help) \
    PARAM_ROW(COMM_PARAM_INT | COMM_PARAM_AGREED, name, #initial, minimum, maximum, help)
#define PARAM_AGREED_BYTES(name, initial, minimum, maximum, help) \
    PARAM_ROW(COMM_PARAM_BYTES | COMM_PARAM_AGREED, name, #initial, minimum, maximum, help)
#define PARAM_AGREED_TEXT(name, initial, help) \
    PARAM_ROW(COMM_PARAM_TEXT | COMM_PARAM_AGREED, name, initial, 0, 0, help)

#endif
